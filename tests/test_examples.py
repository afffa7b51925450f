"""The examples learn what they say they do."""

import importlib.util
import pathlib
import struct
import sys
from types import ModuleType

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent


def load(name: str) -> ModuleType:
    """examples/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_reaches_the_promised_accuracy_and_draws_its_curves(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "curves.png"
    result = load("digits").main(["--epochs", "10", "--output", str(output)])
    assert result.test_accuracy >= 0.96
    steps = 10 * (1437 // 32)
    assert result.steps == len(result.losses) == len(result.rates) == steps
    assert np.mean(result.losses[-20:]) < 0.1 * np.mean(result.losses[:20])
    # rate * decay ** (n / decay_steps), counted from 0 for the first update
    expected = 3e-3 * 0.3 ** (np.arange(steps) / (10 * (1437 // 32)))
    np.testing.assert_allclose(result.rates, expected, rtol=1e-5)
    header = output.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    assert width > 2 * height > 200
    assert f"test accuracy: {result.test_accuracy:.4f}" in capsys.readouterr().out


def test_functional_digits_reaches_the_same_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    result = load("functional_digits").main(["--epochs", "10"])
    assert result.test_accuracy >= 0.96
    assert np.mean(result.losses[-20:]) < 0.1 * np.mean(result.losses[:20])
    assert f"test accuracy: {result.test_accuracy:.4f}" in capsys.readouterr().out


def test_keras_loop_learns_and_draws_its_curves(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "curves.png"
    result = load("keras_loop").main(["--epochs", "8", "--output", str(output)])
    assert result.test_accuracy >= 0.96
    calls = 8 * (1437 // 32)
    assert len(result.losses) == len(result.rates) == len(result.norms) == calls
    assert result.updates == calls // 2
    # A line up to the target, then half a cosine; both count calls.
    warm = calls // 10
    done = (np.arange(calls) - warm) / (calls - warm)
    expected = np.where(done < 0, np.arange(calls) / warm, 0.5 * (1 + np.cos(np.pi * done)))
    np.testing.assert_allclose(result.rates, 4e-3 * expected, rtol=1e-4, atol=1e-8)
    assert np.mean(result.losses[-20:]) < 0.1 * np.mean(result.losses[:20])
    assert output.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert f"test accuracy: {result.test_accuracy:.4f}" in capsys.readouterr().out


def test_mixed_precision_is_as_accurate_as_float32_and_skips_what_overflows(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "curves.png"
    runs = load("mixed_precision").main(["--epochs", "8", "--output", str(output)]).runs
    best = runs["float32"].accuracies[-1]
    assert best >= 0.96
    for dtype in ("bfloat16", "float16"):
        assert abs(runs[dtype].accuracies[-1] - best) <= 0.01
    steps = 8 * (1437 // 32)
    run = runs["float16"]
    assert set(range(99, steps, 100)) <= set(run.skipped)
    for i in run.skipped[1:]:
        assert run.scales[i] == run.scales[i - 1] / 2
    assert output.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert f"float32: test accuracy {best:.4f}" in capsys.readouterr().out


def test_recommender_comes_near_the_noise_and_pays_for_rows_only(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recommender, output = load("recommender"), tmp_path / "picture.png"
    small = "--users 200 --items 100 --ratings 60000 --epochs 10 --rows 300000"
    result = recommender.main([*small.split(), "--output", str(output)])
    last, noise = result.errors[-1], recommender.NOISE
    assert last.test < 1.05 * noise
    # The variance of a least-squares fit is that of the noise times parameters / ratings.
    fit = noise * np.sqrt((200 + 100) * (recommender.RANK + 1) / 60000)
    assert 0.8 * fit < last.truth < 1.2 * fit
    # The noise of the test ratings is independent of what was learnt.
    assert last.test**2 == pytest.approx(noise**2 + last.truth**2, rel=0.05)
    assert result.rates[0] == pytest.approx(0.02) and result.rates[-1] < 0.1 * result.rates[0]
    sparse, dense = result.seconds[300000]
    assert dense > 5 * sparse
    assert output.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert f"test RMSE: {last.test:.4f} stars" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["digits", "functional_digits", "keras_loop", "mixed_precision", "recommender"]
)
def test_example_without_its_extras_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "digits", raising=False)  # which keras_loop imports
    with pytest.raises(SystemExit, match=r"tqdm.*pip install -e '\.\[demo\]'"):
        load(name)
