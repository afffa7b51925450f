"""The attributes that every optimizer of this window has, and what is checked of them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.optimizer.attributes import Fixed, Hyper
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.hyper import is_number
from optax_compat.tracing import is_tracer, tracing
from optax_compat.variable import Variable, is_ref

CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")
NUMBERS = ("weight_decay", *CLIPS, "ema_momentum", "loss_scale_factor")


class Rate(Hyper):
    """Keras's learning rate: a float, a schedule of the calls of `apply`, or a function of no arguments."""

    def set(self, optimizer: Any, value: Any) -> None:
        """See `Hyper`. TypeError or AttributeError for a float in the place of a schedule or function."""
        old = optimizer._settings[self.attribute]
        if not callable(value) and old.cell is None:
            error = TypeError if old.schedule is not None else AttributeError
            raise error(
                "A learning rate that follows a schedule or a function cannot be set to a number. "
                f"Received: learning_rate={short(value)}. Set another schedule, or start with a number."
            )
        super().set(optimizer, value)


class Bounded(Hyper):
    """A hyperparameter that must be a number, because Keras looks whether it is within bounds."""

    error: type[Exception] = TypeError

    def check(self, value: Any) -> None:
        """See `Hyper`; no function, schedule or variable either."""
        if callable(value) or isinstance(value, Variable) or is_ref(value):
            raise self.error(
                f"{self.attribute} must be a number. Received: {self.attribute}={short(value)}. "
                "Pass a float; it can be set while training."
            )
        super().check(value)


class Momentum(Hyper):
    """A momentum, for which there are slots only if it was not 0 in the beginning."""

    def set(self, optimizer: Any, value: Any) -> None:
        """See `Hyper`. ValueError where there are no slots."""
        self.check(value)
        if "trace" not in optimizer._engine.slot_names and not (is_number(value) and value == 0):
            raise ValueError(
                "An optimizer that began without momentum has no slots for it. "
                f"Received: {self.attribute}={short(value)}. Make an optimizer with this momentum."
            )
        super().set(optimizer, value)


class BoundedMomentum(Bounded, Momentum):
    """SGD's momentum."""

    error = ValueError


class Option(Hyper):
    """A number of Keras's pipeline that may be None, which leaves its part out.

    One number in the place of another takes effect in functions that `jax.jit` has compiled, too. A number in
    the place of None, or None, does so only in those compiled after it, and warns if there may be others;
    these go on with the number that they know, and see it again once there is one.
    """

    def __set__(self, obj: object, value: Any) -> None:
        self.set(obj, value)

    def get(self, optimizer: Any) -> Any:
        """The number as it was given, or None; inside of a trace an array."""
        given = optimizer._options[self.attribute]
        if self.attribute not in optimizer._numbers():
            return given
        setting = optimizer._settings[self.attribute]
        if tracing():
            return setting.value(0)
        present = setting.present(0)
        return given if present is setting.given else np.asarray(present).item()

    def set(self, optimizer: Any, value: Any) -> None:
        """Sets it from the next update on.

        Raises:
          TypeError: not a number or None; a traced value in the place of None.
          ValueError: it fits not the others. Nothing has changed then.
        """
        counts = self.attribute in optimizer._numbers()
        if is_tracer(value):
            if not counts:
                raise TypeError(
                    f"A traced value can be set where a number is. Received: {self.attribute}={value} in the "
                    "place of None. Set a number first, outside of the traced function."
                )
            optimizer._settings.set(self.attribute, value)
            return
        old = optimizer._options[self.attribute]
        options = optimizer._options | {self.attribute: value}
        check_options(options)
        if counts and value is not None:
            optimizer._settings.set(self.attribute, value)
        optimizer._options = options
        if (old is None) != (value is None):
            optimizer._reconfigure()
            optimizer._settings.warn_of_compiled(f"{self.attribute} has come or gone", stacklevel=4)


class FixedOption(Fixed):
    """An option of Keras's pipeline that is read, and not set again."""

    def __get__(self, obj: Any, owner: type) -> Any:
        return self if obj is None else obj._options[self._attribute]

    def __set__(self, obj: Any, value: Any) -> None:
        self.refuse(value)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises what Keras's base class does, and for limits and loss scales of 0.

    Raises:
      TypeError: an option that is no number.
      ValueError: a number out of range, or two limits of clipping.
    """
    for name in NUMBERS:
        _check_number(name, options[name])
    given = [name for name in CLIPS if options[name] is not None]
    if len(given) > 1:
        raise ValueError(
            "Only one of clipnorm, clipvalue and global_clipnorm can be set. "
            f"Received: {', '.join(f'{name}={options[name]}' for name in given)}. Choose one."
        )
    for name in given:
        if not options[name] > 0:
            raise ValueError(
                f"{name} must be positive. Received: {name}={options[name]}. For no clipping, pass None."
            )
    if options["loss_scale_factor"] is not None and options["loss_scale_factor"] == 0:
        raise ValueError(
            "loss_scale_factor must not be 0, by which gradients cannot be divided. "
            "Received: loss_scale_factor=0. For none, pass None."
        )
    steps = options["gradient_accumulation_steps"]
    if steps is not None:
        _check_whole("gradient_accumulation_steps", steps, 2, "For none, pass None.")
    if options["use_ema"]:
        momentum, frequency = options["ema_momentum"], options["ema_overwrite_frequency"]
        if momentum is None:
            raise TypeError("ema_momentum must be a number. Received: ema_momentum=None. Pass 0.99, say.")
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"ema_momentum must be in [0, 1]. Received: ema_momentum={momentum}. Pass 0.99, say."
            )
        if frequency is not None:
            _check_whole("ema_overwrite_frequency", frequency, 1, "Never to overwrite, pass None.")


def _check_number(name: str, value: Any) -> None:
    if value is not None and not is_number(value):
        raise TypeError(f"{name} must be a number or None. Received: {name}={short(value)}. Pass a float.")
    if value is not None and value != value:
        raise ValueError(f"{name} must be a number. Received: {name}=nan. Pass a finite value.")


def _check_whole(name: str, value: Any, least: int, remedy: str) -> None:
    if not is_number(value):
        raise TypeError(f"{name} must be an integer or None. Received: {name}={short(value)}. {remedy}")
    if not (value >= least and value == np.floor(value) and np.isfinite(value)):
        raise ValueError(f"{name} must be an integer of at least {least}. Received: {name}={value}. {remedy}")


def check_rate(rate: Any) -> None:
    """Raises ValueError for what is no learning rate; Keras's list, and scalars of any float dtype."""
    is_float = isinstance(rate, float | np.floating | np.ndarray | jax.Array) and not is_ref(rate)
    if is_float and np.ndim(rate) == 0 and jnp.issubdtype(jnp.result_type(rate), jnp.floating):
        return
    if callable(rate) or isinstance(rate, Variable) or is_ref(rate):
        return
    raise ValueError(
        "learning_rate must be a float, a schedule, or a function of no arguments. "
        f"Received: learning_rate={short(rate)} of type {type(rate).__name__}. Pass float(learning_rate)."
    )


def listed(name: str, given: Any) -> list[Any]:
    """What was given for an argument as a list; TypeError if it is none."""
    if isinstance(given, str | Mapping) or not hasattr(given, "__iter__"):
        raise TypeError(f"{name} must be a list. Received: {name}={short(given)}. Pass a list of arrays.")
    return list(given)


def initializer_of(given: Any) -> Callable[[tuple[int, ...], Any], Any]:
    """A function `(shape, dtype) -> array` from itself or its name; ValueError for another name."""
    named = {"zeros": jnp.zeros, "ones": jnp.ones}
    if callable(given):
        return given
    if given not in named:
        raise ValueError(
            f"An initializer must be one of {', '.join(named)}, or a function of shape and dtype. "
            f"Received: initializer={short(given)}. Pass a function."
        )
    return named[given]
