# SPDX-License-Identifier: Apache-2.0
"""The experiments that train: what they plan, and claims that follow the numbers.

Each is run once at a scale of seconds; what a claim says is tested with numbers made for it.
"""

import math

import attrs
import numpy as np
import pytest

from pufferslice.learning import MeanSquare, WithoutReplacement, exactly, run_cost
from pufferslice.torch.models import layer_sizes, resnet22
from reproduction import accuracy, layers, training
from reproduction.experiment import Setting, experiment_named
from reproduction.layers import LayerCaps
from reproduction.noise import SETUPS, SgdSetup
from reproduction.training import CurvePoint, RunResult

TINY = SgdSetup(batch_size=30, clip_norm=1.0, peak_learning_rate=0.5, n_epochs=1, n_records=60)


def result(accuracy, noise=1.0, **changed):
    values = {
        "noise_multiplier": noise,
        "plan_epsilon": 1.0,
        "train_accuracy": accuracy,
        "train_loss": 1.0,
        "test_accuracy": accuracy,
        "test_loss": 1.0,
        "others_loss": 1.0,
        "attack_auc": (0.6, 0.5, 0.7),
        "curve": (),
    }
    return RunResult(**(values | changed))


def run_tiny(module, folder, name=None, **patched):
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in patched.items():
            patch.setattr(module, constant, value)
        return experiment_named(name or module.NAME).run(Setting(full=False, folder=folder))


class TestAccuracy:
    @pytest.mark.soak
    def test_every_series_is_trained_at_every_budget(self, tmp_path):
        outcome = run_tiny(accuracy, tmp_path, QUICK_SETUPS=(TINY,), QUICK_EPSILONS=(80.0, 8.0))
        assert len(outcome.rows) == 7 * 2 + 1
        assert "60 scikit-learn digits, 4 differ" in outcome.scale
        by_series = {row["series"]: row for row in outcome.rows if row["epsilon"] in (8.0, None)}
        for series in ("srpp", "sa_srpp", "log_moment", "amplified"):
            assert by_series[series]["epsilon_of_run"] == pytest.approx(8.0, rel=1e-6)
        assert by_series["recipe_sa_srpp"]["epsilon_of_run"] > 8.0
        assert by_series["almost_no_noise"]["epsilon_of_run"] is None
        noises = [by_series[s]["noise_multiplier"] for s in ("srpp", "sa_srpp", "amplified")]
        assert noises == sorted(noises, reverse=True)

    def claims(self, full=False, **values):
        epsilons = (80.0, 8.0, 0.5)
        rows = [
            {"batch_size": 512, "series": series, "epsilon": epsilon, "test_accuracy": accuracy}
            for series, accuracies in values.items()
            for epsilon, accuracy in zip(epsilons, accuracies, strict=True)
        ]
        return list(accuracy.accuracy_claims(rows, epsilons, on_cifar=full))

    def test_claims_follow_the_numbers(self):
        """Percentages of CIFAR-10 are claimed at full scale only."""
        ours = {"srpp": (0.2, 0.1, 0.1), "sa_srpp": (0.5, 0.3, 0.1), "amplified": (0.6, 0.4, 0.2)}
        as_the_paper_says = self.claims(
            full=True,
            recipe_srpp=(0.3, 0.2, 0.15),
            recipe_sa_srpp=(0.65, 0.4, 0.16),
            group_dp_sgd=(0.25, 0.12, 0.1),
            **ours,
        )
        assert [claim.held for claim in as_the_paper_says] == [True] * 8
        the_other_way_round = self.claims(
            recipe_srpp=(0.7, 0.8, 0.9),
            recipe_sa_srpp=(0.3, 0.4, 0.55),
            group_dp_sgd=(0.95, 0.95, 0.95),
            **ours,
        )
        assert [claim.held for claim in the_other_way_round] == [False] * 6


class TestCurves:
    @pytest.mark.soak
    def test_one_line_per_noise_with_twenty_points(self, tmp_path):
        setup = attrs.evolve(TINY, n_epochs=10)
        outcome = run_tiny(training, tmp_path, QUICK_SETUP=setup)
        assert {row["series"] for row in outcome.rows} == {
            *training.SERIES,
            "almost_no_noise",
        }
        assert len(outcome.rows) == 6 * 20
        assert max(row["epoch"] for row in outcome.rows) == 10

    def named(self, *results):
        return [(TINY, f"series {k}", one) for k, one in enumerate(results)]

    def test_more_noise_may_not_win(self):
        good = self.named(result(0.9, 1.0), result(0.5, 10.0), result(0.52, 20.0))
        bad = self.named(result(0.5, 1.0), result(0.9, 10.0))
        assert training._ordered(good).held
        assert not training._ordered(bad).held

    def test_the_last_tenth_may_not_move(self):
        def curve(*accuracies):
            return tuple(
                CurvePoint(step=step, test_accuracy=a, test_loss=1.0, batch_loss=None)
                for step, a in enumerate(accuracies, start=1)
            )

        setup = attrs.evolve(TINY, n_epochs=5)
        steady = [(setup, "x", result(0.5, curve=curve(*[0.1] * 8, 0.5, 0.51)))]
        moving = [(setup, "x", result(0.5, curve=curve(*[0.1] * 8, 0.4, 0.51)))]
        assert training._converged(steady).held
        assert not training._converged(moving).held


class TestAttack:
    def test_members_are_attacked_at_every_budget(self, tmp_path):
        outcome = run_tiny(
            accuracy,
            tmp_path,
            accuracy.ATTACK_NAME,
            QUICK_ATTACK_SETUP=TINY,
            QUICK_ATTACK_EPSILONS=(500.0, 2.0),
        )
        assert len(outcome.rows) == 2 * 2 + 1
        for row in outcome.rows:
            assert row["attack_auc_low"] <= row["attack_auc"] <= row["attack_auc_high"]
            assert row["member_loss"] > 0
            assert row["non_member_loss"] > 0

    def claims(self, trained, tested, aucs, base, reach=0.05):
        rows = [
            accuracy._attack_row(
                "recipe_sa_srpp",
                epsilon,
                result(b, noise, train_accuracy=a, attack_auc=(auc, auc - reach, auc + reach)),
            )
            for epsilon, noise, a, b, auc in zip(
                (500.0, 20.0, 2.0), (1, 5, 20), trained, tested, aucs, strict=True
            )
        ]
        alone = result(base[1], 0.001, train_accuracy=base[0], attack_auc=(base[2], 0.0, 1.0))
        rows.append(accuracy._attack_row("almost_no_noise", None, alone))
        return [claim.verdict for claim in accuracy._attack_claims(rows)]

    def test_as_the_paper_says(self):
        numbers = ((1.0, 0.6, 0.2), (0.7, 0.5, 0.2), (0.7, 0.6, 0.5), (1.0, 0.8, 0.72))
        assert self.claims(*numbers) == ["reproduced"] * 3
        *_, attack = self.claims(*numbers, reach=0.15)
        assert attack == "not decided"

    def test_the_other_way_round(self):
        numbers = ((0.7, 0.6, 0.2), (0.69, 0.8, 0.9), (0.5, 0.6, 0.7), (1.0, 0.8, 0.72))
        assert self.claims(*numbers) == ["not reproduced"] * 3


class TestLayers:
    def test_the_tensors_of_the_papers_model(self):
        sizes = layer_sizes(resnet22(seed=0))
        assert len(sizes) == 23
        assert sum(sizes.values()) == 291_898

    def test_one_layer_is_flat_clipping(self):
        """With one block every slice has the same cap, and the recipe of flat clipping is back."""
        caps = LayerCaps.of(SETUPS[1], [50], 20)
        np.testing.assert_allclose(caps.shares, 1.0, rtol=1e-12)
        assert caps.total("joint") == pytest.approx(caps.total("ave"), rel=1e-12)
        multiplier = caps.multiplier("sa_ave", 1.0)
        assert multiplier == pytest.approx(16.16, abs=0.005)
        assert caps.true_epsilon("sa_ave", multiplier) == pytest.approx(136.6, abs=0.05)

    @pytest.mark.soundness
    def test_true_costs_are_those_of_the_accountant(self):
        setup = SETUPS[1]
        caps = LayerCaps.of(setup, [3, 4, 5], 20)
        sampling = WithoutReplacement(n_records=50_000, batch_size=1024)
        together = np.full(setup.n_steps, 100.0 / math.sqrt(3))
        exact = run_cost(MeanSquare(), 16.0, sampling, exactly(20), together)
        assert caps.true_epsilon("sa_ave", 100.0) == pytest.approx(exact, rel=1e-12)
        worst = caps.true_epsilon("ave", 100.0)
        assert worst == pytest.approx(2 * 16 * 20**2 * setup.n_steps * 3 / 100**2, rel=1e-12)

    def test_noise_is_exact_and_models_are_trained(self, tmp_path, monkeypatch):
        monkeypatch.setattr(layers, "_N_DIRECTIONS", 20)
        outcome = run_tiny(layers, tmp_path, QUICK_SETUP=TINY, QUICK_EPSILONS=(80.0, 8.0))
        noise = [row for row in outcome.rows if row["panel"] == "noise"]
        assert len(noise) == 7 * 21
        accuracy = [row for row in outcome.rows if row["panel"] == "accuracy"]
        assert len(accuracy) == 3 * 2
        ours = next(row for row in accuracy if row["series"] == "amplified")
        assert ours["epsilon_of_run"] == pytest.approx(ours["epsilon"], rel=1e-6)
        verdicts = [claim.verdict for claim in outcome.claims[:3]]
        assert verdicts == ["reproduced", "equal", "not reproduced"]
        assert "23 layers" in outcome.claims[2].found

    def test_accuracy_claim_follows_the_numbers(self):
        def claim(*pairs):
            trained = {
                (series, epsilon): result(value)
                for epsilon, pair in zip((80.0, 8.0), pairs, strict=True)
                for series, value in zip(("recipe_srpp", "recipe_sa_srpp"), pair, strict=True)
            }
            return layers._more_accurate(trained).held

        assert claim((0.5, 0.9), (0.3, 0.28))
        assert not claim((0.5, 0.9), (0.3, 0.2))
        assert not claim((0.5, 0.52), (0.3, 0.3))
