"""The reconstruction of Big-Math's solve rates, and the reader for the real ones."""

import numpy as np
import pytest

from lessons import identity
from lessons.experiments import bigmath
from toy_env import UsageError

SHARE = bigmath.reconstruct()
P = bigmath.rates()
K = np.arange(bigmath.ANSWERS + 1)


def test_every_published_number_comes_out_as_printed():
    """Rounded as the paper rounds; the arithmetic here is by sums over the 65 rates, not by the rows of constraints."""
    assert SHARE.sum() == pytest.approx(1) and (SHARE > 0).all()
    assert (round(100 * SHARE[0] - 1e-6, 1), round(100 * SHARE[-1] - 1e-6, 1)) == (4.0, 7.2)
    silent = [round(100 * sum(s * (p**G + (1 - p) ** G) for s, p in zip(SHARE, P))) for G in (4, 8, 16, 32)]
    assert silent == [59, 44, 32, 23]
    at_64 = 100 * sum(s * (p**64 + (1 - p) ** 64) for s, p in zip(SHARE, P))
    assert at_64 == pytest.approx(16.5, abs=1e-6)  # the edge of what is printed as 17: the true value is 16.527
    for spread, inside, published in (
        (P * (1 - P), (P < 0.1) | (P > 0.9), 13.9),
        (np.sqrt(P * (1 - P)), (P < 0.1) | (P > 0.9), 24.7),
        (P * (1 - P), abs(P - 0.5) <= 0.1, 22.8),
        (np.sqrt(P * (1 - P)), abs(P - 0.5) <= 0.1, 17.5),
    ):
        assert 100 * (SHARE * spread)[inside].sum() / (SHARE * spread).sum() == pytest.approx(published, abs=0.0501)


def test_nothing_that_agrees_with_the_numbers_has_more_entropy():
    """Against many distributions of the same kind nearby: none that fulfils the constraints is more even."""
    A, b = bigmath.constraints()
    rng = np.random.default_rng(0)
    entropy = -(SHARE * np.log(SHARE)).sum()
    at_the_edge = b - 1e-7 < A @ SHARE
    fixed = np.vstack([A[at_the_edge], np.ones(65)])  # what a small change must leave as it is
    tried = 0
    for _ in range(300):
        direction = rng.normal(size=65) * SHARE
        direction -= np.linalg.pinv(fixed) @ (fixed @ direction)
        for size in (-0.3, 0.01, 0.3):
            other = SHARE + size * direction
            if other.min() > 0 and (A @ other <= b + 1e-9).all():
                tried += 1
                assert -(other * np.log(other)).sum() < entropy
    assert tried > 100
    even = np.full(65, 1 / 65)
    assert (A @ even > b).any() and -(even * np.log(even)).sum() > entropy  # more even, and excluded


def test_it_knows_nothing_of_left_and_right():
    """All but two numbers are the same for k and 64 - k, so the interior comes out symmetric. The data is not."""
    np.testing.assert_allclose(SHARE[1:-1], SHARE[-2:0:-1], rtol=1e-6)


def test_unbiased_silent_rates_lie_below_the_plug_in():
    """The true ones, by the bars of the paper's histogram, are 58.6 to 11.2 %; the reconstruction is close."""
    for G, true in {4: 58.59, 8: 43.07, 16: 30.19, 32: 19.64, 64: 11.18}.items():
        unbiased = 100 * SHARE @ identity.silent_rate_unbiased(K, 64, G)
        assert unbiased == pytest.approx(true, abs=0.65)
        assert unbiased < 100 * SHARE @ identity.silent_rate_plug_in(K, 64, G) - 0.4


def test_solve_rates_are_read_from_three_kinds_of_files(tmp_path):
    values = [0.0, 1 / 64, 0.5, 1.0]
    (tmp_path / "a.csv").write_text(
        "problem,llama8b_solve_rate,other\n" + "".join(f'"1, 2?",{v},0\n' for v in values) + "unsolved,,1\n"
    )
    np.save(tmp_path / "a.npy", np.array(values + [np.nan]))
    for name in ("a.csv", "a.npy"):
        np.testing.assert_array_equal(bigmath.load_solve_rates(tmp_path / name), values)
    np.testing.assert_array_equal(bigmath.load_solve_rates(tmp_path / "a.csv", column="other"), [0, 0, 0, 0, 1])
    share = bigmath.histogram(values)
    assert share[[0, 1, 32, 64]].tolist() == [0.25] * 4 and share.sum() == 1


def test_a_parquet_file_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"llama8b_solve_rate": [0.25, None, 1.0], "x": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    np.testing.assert_array_equal(bigmath.load_solve_rates(tmp_path / "a.parquet"), [0.25, 1.0])
    with pytest.raises(UsageError, match="has no column 'y'; choose from llama8b_solve_rate, x"):
        bigmath.load_solve_rates(tmp_path / "a.parquet", column="y")


def test_bad_files_get_one_line(tmp_path):
    (tmp_path / "a.csv").write_text("rate\nmany\n")
    (tmp_path / "b.csv").write_text("llama8b_solve_rate\n64\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "a.txt").write_text("1")
    for name, column, message in (
        ("none.csv", "rate", "there is no file .*none.csv; give a .csv"),
        ("a.csv", "solve", "has no column 'solve'; choose from rate"),
        ("a.csv", "rate", "could not convert string to float: 'many'; solve rates are numbers from 0 to 1"),
        ("b.csv", "llama8b_solve_rate", "numbers from 0 to 1, found from 64 to 64"),
        ("empty.csv", "rate", "has no column 'rate'"),
        ("a.txt", "rate", "neither a .csv nor"),
    ):
        with pytest.raises(UsageError, match=message):
            bigmath.load_solve_rates(tmp_path / name, column)


def test_without_a_network_the_download_says_what_to_do(monkeypatch):
    import huggingface_hub

    def refuse(*args, **kwargs):
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(UsageError, match=r"could not fetch .* \(no network\); get the file by other means"):
        bigmath.download()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name, repo_type: f"/cache/{repo_type}/{name}")
    assert str(bigmath.download()) == "/cache/dataset/all/train-00000-of-00001.parquet"
