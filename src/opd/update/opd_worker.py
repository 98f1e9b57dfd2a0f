"""The worker of distillation: its models that only read are the teachers, and the loss is the divergence from them."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.debug import marked_timer

from opd.batch.builder import TEACHER_PROMPTS, build_opd_batch
from opd.batch.rows import RolloutRows
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import LossType, Stage
from opd.experiment.sections import Teacher
from opd.losses import EventTargets, Loss, Output, Weights
from opd.losses.terms import STATISTICS
from opd.rollout.rows import FILLER_TOKENS, IDS, LOG_PROBS
from opd.update.attention import Slice
from opd.update.head import Counts, HeadLoss, LossTask
from opd.update.policy_loss import Clips, vanilla
from opd.update.reading import before_unshared, choose, keep_tokens
from opd.update.signs import neighbour_signs, preference_signs, token_signs, watched_entries, weight_signs
from opd.update.step_metrics import CHOICE, micro_batch_counts, over_sequence, policy_counts
from opd.update.student import StudentWorker
from opd.update.teachers import SelfTeachers, TeacherStates, read_teachers
from opd.update.token_view import Seen, TokenView
from opd.weights.stages import Schedule, params_of
from opd.weights.tokens import places, scored_divergence


def is_sampled(spec: OpdSpec | OpdAgentSpec, stage: Stage) -> bool:
    """Return True if a step's tokens come from the whole distribution of the weights that the step begins with."""
    # Under the schedule carry, earlier weights made many tokens.
    is_of_these_weights = stage.rollouts == "student" and spec.rollout.schedule == "strict"
    return is_of_these_weights and not spec.rollout.is_truncated


def loss_of(spec: OpdSpec | OpdAgentSpec, stage: Stage, kind: LossType) -> Loss:
    """Return the loss with a divergence; the parameters are of the stage's own divergence only."""
    params = params_of(spec.opd, stage) if kind == stage.loss_type else {}
    keys = spec.opd.policy
    policy = partial(vanilla, clips=Clips(keys.clip_ratio_low, keys.clip_ratio_high, keys.clip_ratio_c))
    return Loss(kind, params, spec.rollout.temperature, policy if spec.opd.has_policy else None)


@dataclass(frozen=True, kw_only=True)
class DivergenceLoss(HeadLoss):
    """The loss of a distillation's step.

    Args:
        policy_weight: of the policy loss in the loss. 0 means that the step has none.
        view: takes note of tokens for people. None means that no one asked.
        nonfinite: filled with each micro-batch's row numbers, each token's row, and whether its loss is not finite.
    """

    spec: OpdSpec | OpdAgentSpec
    stage: Stage
    policy_weight: float
    view: TokenView | None
    nonfinite: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def scoring(self) -> HeadLoss:
        """Return the pass that scores tokens by entropy, and by the divergence of `opd.importance.tokens` where it needs one."""
        selection = self.spec.opd.importance.tokens
        if selection.needs_teacher:
            loss = loss_of(self.spec, self.stage, scored_divergence(selection.score, self.loss.kind))
            return HeadLoss(rows=self.rows, loss=loss, states=self.states, events=self.events, options=self.options)
        loss, options = Loss(temperature=self.loss.temperature), {**self.options, "watch": ("entropy",)}
        return HeadLoss(rows=self.rows, loss=loss, options=options)

    def task(self, micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        task, shown = super().task(micro_batch, starts, own), list[int]()
        if self.view is not None:
            shown = [place for place, row in enumerate(micro_batch["opd_row"].tolist()) if self.view.awaits(row)]
        return task._replace(shown=torch.isin(task.token_rows, torch.tensor(shown))) if shown else task

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        several = self.spec.routed
        counts = micro_batch_counts(micro_batch, task, output, first_update=first_update, teachers=several)
        if self.spec.trainer.monitor and not self.spec.has_events:  # the signs compare whole distributions
            drawn = first_update and is_sampled(self.spec, self.stage)
            counts |= token_signs(output, is_sampled=drawn) | neighbour_signs(task)
            if task.own is None and "row_score" in micro_batch:
                counts |= preference_signs(task.token_rows, micro_batch["row_score"], output)
        if task.weights.policy is not None:
            counts |= policy_counts(task, output, weight=self.policy_weight)
        if self.view is not None:
            self.view.trained(micro_batch["opd_row"].tolist(), task, output)
        self.nonfinite.append((micro_batch["opd_row"], task.token_rows, output.statistics["nonfinite"]))
        return counts


class OPDWorker(StudentWorker):
    """Lets the teachers read, each its own rows, and caches their hidden states of trained tokens; then trains the student."""

    spec: OpdSpec | OpdAgentSpec

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        self.facts, self.opd = self.ours.run, self.spec.opd
        self._schedule = Schedule.of(self.opd, total_steps=config.actor.optim.total_training_steps)
        self._loss: DivergenceLoss | None = None
        self._row_ids: list[int] = []
        self._self_teachers = SelfTeachers(engines={}, every={})

    @property
    def read_models(self) -> list[Teacher]:
        paths, teachers = self.ours.teacher_paths, self.spec.named_teachers
        return [teacher.model_copy(update={"path": paths[key]}) for key, teacher in teachers.items()]

    @property
    def sizes(self) -> dict[str, Any]:
        return super().sizes | {"valid_vocab": self.facts.valid_vocab}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        every = {key: teacher.refresh_every for key, teacher in self.spec.named_teachers.items()}
        self._self_teachers = SelfTeachers(engines=dict(zip(every, self.readers, strict=True)), every=every)

    def write_checkpoint(self, local_path: str, global_step: int) -> None:
        super().write_checkpoint(local_path, global_step)
        self._self_teachers.save(Path(local_path), step=global_step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, local_path: str) -> None:
        super().load_checkpoint(local_path)
        self._self_teachers.load(Path(local_path))

    def make_updates(self, data: TensorDict, timing: dict[str, float]) -> dict[str, Any] | None:
        """Make the updates of a step.

        Args:
            data: rows as of `update_actor`, with `teacher_prompts` where there are any; [B] `sample_weights`, `row_id`,
                `teacher` (its number) of several, and `advantage` for a policy gradient; `training_step`, `seed`, `shown_rows`.
        """
        step, seed, shown = (data[name] for name in ("training_step", "seed", "shown_rows"))
        selection, student = self.opd.importance.tokens, self.student_engine
        loss, teacher_rows, num_left_out = self._prepare(data, step, shown)
        data = data.exclude(TEACHER_PROMPTS)  # the student has no use for them
        self._self_teachers.before(step, student)
        chosen: dict[str, float] = {}
        for phase in ("choose", "teachers") if not selection.needs_teacher else ("teachers", "choose"):
            if phase == "teachers":
                with marked_timer("teacher_s", timing):
                    self._read_teachers(data, loss, teacher_rows)
            elif selection.score != "none":
                with marked_timer("score_s", timing):
                    loss, chosen = choose(data, loss, student, seed=(seed, step))
        if loss.weights.policy is not None:
            loss = replace(loss, old_log_probs=self.old_log_probs(data, loss.rows, timing))
        before = watched_entries(student.module) if self.spec.trainer.monitor else None
        metrics = self.train(data, loss, timing)
        self._loss = replace(loss, states=None, events=None)
        cached = self.cache.counts()
        if student.use_ulysses_sp:
            cached = over_sequence(cached, student.ulysses_parallel_group)
        if metrics is None:
            return None
        if before is not None:
            metrics |= weight_signs(before, watched_entries(student.module))
        metrics |= {f"{CHOICE}{name}": [value] for name, value in chosen.items()}
        return metrics | cached | {"sum/unshared_tokens": [float(num_left_out)]}

    def _prepare(
        self, data: TensorDict, step: int, shown: tuple[int, ...]
    ) -> tuple[DivergenceLoss, RolloutRows | None, int]:
        """Return the step's loss, rows of the teacher's own, and the number of tokens after one that the teacher lacks.

        Tokens that the teacher cannot read, or beyond the horizon, leave both masks of `data`. Tokens of rows without weight leave
        `response_mask` alone: they reach no head, and count in the loss's divisor.
        """
        stage, weights, opd, facts = self._schedule.stage(step), self._schedule.weights_at(step), self.opd, self.facts
        # Rows that only fill the step up train nothing; no other row may be longer than agreed.
        batch = build_opd_batch(data, max_length=max(opd.max_length, FILLER_TOKENS))
        rows, entries = batch.rows, {"student": facts.student_vocab, "teacher": facts.teacher_vocab}
        row = rows.row_of_response_token
        counted = rows.response_mask & before_unshared(batch.teacher_rows or rows, facts.valid_vocab)
        num_left_out = int((rows.response_mask & ~counted).sum())
        if (horizon := opd.horizon.tokens) is not None:
            counted[counted.clone()] = places(row[counted])[0] < horizon
        has_policy, of_row = opd.has_policy and bool(weights.policy), torch.ones_like(data["sample_weights"])
        if opd.loss_agg_mode == "seq-mean-token-mean":  # a row counts by the mean of its tokens
            of_row = of_row / replace(rows, response_mask=counted).num_trained_tokens.clamp(min=1)
        divergence, policy = weights.divergence * data["sample_weights"] * of_row, weights.policy * of_row
        needed = (divergence != 0) | (policy != 0) if has_policy else divergence != 0
        rows = replace(rows, response_mask=counted & needed[row])
        keep_tokens(data, counted, "loss_mask")
        keep_tokens(data, rows.response_mask, "response_mask")
        row = row[rows.response_mask]
        of_rows = data["teacher"].tolist() if self.spec.teachers else None
        self._row_ids = data["row_id"].tolist()
        assert stage.loss_type is not None  # `Schedule` fills it in
        loss = DivergenceLoss(
            spec=self.spec,
            stage=stage,
            policy_weight=weights.policy,
            rows=rows,
            loss=loss_of(self.spec, stage, stage.loss_type),
            weights=Weights(divergence=divergence[row], policy=policy[row] if has_policy else None),
            policy_inputs=data["advantage"][row] if has_policy else None,
            states=TeacherStates(self.cache, self.spec.teacher_names, of_rows) if self.readers or of_rows else None,
            events=served_events(data, rows) if self.spec.has_events else None,
            over_rows=opd.loss_agg_mode != "token-mean",
            options={
                "watch": STATISTICS[:1] if self.spec.has_events else STATISTICS,
                "sizes": self.sizes,
                "entries": {side: num for side, num in entries.items() if num > facts.valid_vocab},
            },
            view=TokenView(rows, self._row_ids, shown) if shown else None,
        )
        return loss, batch.teacher_rows, num_left_out

    def _read_teachers(self, data: TensorDict, loss: DivergenceLoss, own: RolloutRows | None) -> None:
        """Fill the loss's states with what the teachers read of the trained tokens, in `own` rows if any, and their heads."""
        rows = loss.rows
        if loss.states is None:  # a served teacher has read the answers as they came
            return
        if own is not None:
            rows, data = replace(own, response_mask=rows.response_mask), data.select("opd_row")
            data["input_ids"], data["position_ids"] = own.nested(own.input_ids), own.nested(own.position_ids)
        vocab = self.facts.valid_vocab
        read_teachers(data, rows, teachers=self.readers, states=loss.states, valid_vocab=vocab)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_nonfinite_rows(self) -> list[int]:
        """Return the `row_id`s of this rank's rows with a token whose loss was not finite, in the last step."""
        notes = [] if self._loss is None else self._loss.nonfinite
        found = {int(row) for rows, of_token, is_one in notes for row in rows[of_token.cpu()[is_one.cpu()]]}
        return [self._row_ids[row] for row in found]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_token_view(self) -> Seen:
        """Return what this rank saw of the last step's tokens; the step was given `shown_rows`."""
        assert self._loss is not None
        assert self._loss.view is not None
        return self._loss.view.seen


def served_events(data: TensorDict, rows: RolloutRows) -> EventTargets:
    """Return the events [T, 1 + k] of the rows' trained tokens, from the columns that the rollout has brought."""
    masks = rows.response_mask.split(rows.response_lens.tolist())
    columns = (zip(data[name].unbind(), masks, strict=True) for name in (IDS, LOG_PROBS))
    # A row that a teacher of the ranks reads brings no places, and has zeros here.
    ids, log_probs = (
        torch.cat(
            [
                values[mask] if len(values) else values.new_zeros(int(mask.sum()), values.shape[1])
                for values, mask in column
            ]
        )
        for column in columns
    )
    return EventTargets(ids.long(), log_probs)
