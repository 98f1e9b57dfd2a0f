"""Runs the agent loops of a batch, scores them and stores the rows, in a fixed order, in one write."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import hydra
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from ray.actor import ActorHandle
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopOutput,
    AgentLoopWorker,
    DictConfigWrap,
    ToolListWrap,
    _agent_loop_registry,
)
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from opd.agent.loop import ToolDialogueLoop, shared
from opd.agent.metrics import AgentCounts
from opd.agent.settings import AGENT_LOOP, LOOP_COLUMN
from opd.agent.trajectories import Trajectory
from opd.compat import quiet
from opd.compat.verl_trainer import RewardWorker
from opd.compat.vllm_prefixes import begun_under
from opd.config import EvalSpec
from opd.config.run_config import RunConfig
from opd.evaluation.samples import Sample, further_numbers
from opd.rewards import worst_score
from opd.rollout.carry import CarriedRow, Growth
from opd.rollout.dialogues import DialogueKeeper, num_kept
from opd.rollout.log_probs import asks_log_probs
from opd.rollout.pieces import PieceClient, advance, end_tokens
from opd.rollout.reward_function import reward_function
from opd.rollout.seeds import PASS_RATES, TRAIN, VALIDATION, SeededClient

logger = logging.getLogger(__name__)

quiet.mute(*quiet.IN_ROLLOUT)

Row = tuple[str, dict[str, Any], dict[str, Any]]
"""(key, fields, tag) of one row in the layout verl's V1 trainer reads."""
Begun = tuple[dict[str, Any], CarriedRow]
"""(the prompt's row of the data set, unless its tokens are known; what there is of its answer)."""

GIVEN = "__given__"
"""Field of a prompt: token ids of each of its answers by the sample's number, in the place of sampled ones."""
PROMPT_IDS = "__prompt_ids__"
"""Field of a prompt beside `GIVEN`: the tokens that each of the answers followed; a template that writes the date writes others now."""
MAX_TOKENS = "__max_tokens__"
"""Field of a prompt: tokens that an answer may have, of those that `data.max_response_length` allows."""
ONLY_SCORED = "__only_scored__"
"""Field of a batch, true where its answers, sampled as in training, are wanted in the report and nowhere else."""


@dataclass(kw_only=True)
class RolloutReport:
    """What happened to one batch's trajectories."""

    num_trajectories: int = 0
    num_failed: int = 0
    num_reward_failed: int = 0
    num_cut: int = 0
    """Given up unanswered, because the run is asked to end."""
    first_error: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    """Every answer, where the run is an evaluation or nothing else is wanted of the batch; `problem_index` is the row's in the data set."""
    fault: Exception | None = None
    """What ends the run although these answers were given."""
    agent: AgentCounts = field(default_factory=AgentCounts)
    """Conversations with tools."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """The first of those conversations in the batch's order, as many as the run keeps."""

    def add(self, other: RolloutReport) -> None:
        self.num_trajectories += other.num_trajectories
        self.num_failed += other.num_failed
        self.num_reward_failed += other.num_reward_failed
        self.num_cut += other.num_cut
        self.first_error = self.first_error or other.first_error
        self.fault = self.fault or other.fault
        self.samples.extend(other.samples)
        self.agent.add(other.agent)
        self.trajectories.extend(other.trajectories)
        for key, value in other.seconds.items():
            self.seconds[key] = max(self.seconds.get(key, 0.0), value)


class Unscored(RuntimeError):
    """An answer that was given and could not be scored at all: the reward function is at fault, not the answer."""

    def __init__(self, error: Exception, fields: dict[str, Any]):
        super().__init__(f"its answer could not be scored: {type(error).__name__}: {error}")
        self.fields = fields


class _LocalReward:
    """verl's reward worker in this process, behind the one call that `AgentLoopWorker` makes of its actor handle."""

    class _Call:
        def __init__(self, worker: RewardWorker):
            self._worker = worker

        async def remote(self, data: DataProto) -> dict[str, Any]:
            score: dict[str, Any] = await self._worker.compute_score(data)
            return score

    def __init__(self, config: DictConfig):
        self.compute_score = self._Call(RewardWorker(config))


class GivenAnswer:
    """In the place of a rollout server's client: one answer that was given before, without its probabilities."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    async def generate(self, request_id: str, *, sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        """The answer, up to `max_tokens` of the sampling parameters."""
        return TokenOutput(token_ids=self._ids[: sampling_params.get("max_tokens")])


class RolloutWorker(AgentLoopWorker):  # type: ignore[misc]  # untyped
    """verl's agent-loop worker with per-request seeds, ordered rows, counted failures and one write per batch.

    verl's own writes each trajectory as it ends (several round trips each) and publishes in completion order, which
    makes mini-batches depend on timing. Synchronous training needs the whole batch anyway.
    """

    def __init__(
        self,
        config: DictConfig,
        llm_client: LLMServerClient,
        teacher_client: LLMServerClient | None = None,
        reward_loop_worker_handles: list[ActorHandle] | None = None,
    ):
        handles = reward_loop_worker_handles or [_LocalReward(config)]
        super().__init__(config, llm_client, teacher_client, handles)
        self.ours = RunConfig.of(config)
        if not isinstance(self.ours.spec, EvalSpec):
            tq.init()
        self._keeper: DialogueKeeper | None = None
        self._reward_function = reward_function(config)
        self.num_finished = 0
        self._can_be_cut: list[asyncio.Task[list[Row]]] = []
        self._is_cut = False
        if config.actor_rollout_ref.rollout.agent.default_agent_loop == AGENT_LOOP:
            shared(config, self.tokenizer, self.tools)  # a bad database or template ends the run here

    async def generate(self, batch: TensorDict) -> RolloutReport:
        """Answer every prompt of `batch` `n` times; rows and statuses are stored when this returns."""
        started = time.perf_counter()
        validate, only_scored = _take(batch, "validate"), _take(batch, ONLY_SCORED)
        partition = PASS_RATES if only_scored else VALIDATION if validate else TRAIN
        if LOOP_COLUMN not in batch:
            batch[LOOP_COLUMN] = NonTensorData(self.config.actor_rollout_ref.rollout.agent.default_agent_loop)
        prompts = [_row(batch, i) for i in range(len(batch))]
        rollout = self.config.actor_rollout_ref.rollout
        default_n = rollout.val_kwargs.n if validate else rollout.n
        jobs = [
            (prompt, sample)
            for prompt in prompts
            for sample in prompt.get(GIVEN) or range(int(prompt.get("__rollout_n__", default_n)))
        ]
        self._keeper = DialogueKeeper(0 if only_scored else num_kept(self.ours), self.tokenizer, partition)
        answers = [asyncio.create_task(self._trajectory(prompt, sample, partition)) for prompt, sample in jobs]
        is_reported = only_scored or (validate and isinstance(self.ours.spec, EvalSpec))
        self._can_be_cut, self._is_cut = answers if is_reported else [], False
        results = await asyncio.gather(*answers, return_exceptions=True)
        self._can_be_cut = []
        generated = time.perf_counter()
        report = RolloutReport(num_trajectories=len(jobs), agent=self._keeper.counts)
        report.trajectories = self._keeper.kept()
        rows, failed = self._collect(jobs, results, report)
        report.fault = next((result for result in results if _engine_is_gone(result)), None)
        if is_reported:
            finals = [
                result.fields if isinstance(result, Unscored) else result[-1][1]
                for result in results
                if isinstance(result, Unscored) or not isinstance(result, BaseException)
            ]
            report.samples = [self._sample(fields) for fields in finals]
        try:
            if not is_reported and not report.num_cut:
                await self._store(prompts, rows, failed, partition)
        except Exception as error:  # noqa: BLE001 - raised by the manager, after what was answered has been reported
            report.fault = report.fault or error
        report.seconds = {"generate": generated - started, "store": time.perf_counter() - generated}
        return report

    def _sampling(self, partition: str, step: int) -> dict[str, Any]:
        config, every = self.config.actor_rollout_ref.rollout, self.ours.sampling.rollout.logprobs_every
        source = config.val_kwargs if partition == VALIDATION else config
        return {
            "temperature": source.temperature,
            "top_p": source.top_p,
            "top_k": source.top_k,
            "repetition_penalty": 1.0,
            "logprobs": partition == TRAIN and asks_log_probs(self.config, every=every, step=step),
        }

    async def _trajectory(self, prompt: dict[str, Any], sample: int, partition: str) -> list[Row]:
        """One agent loop from prompt to scored rows."""
        kwargs = {k: v for k, v in prompt.items() if not k.startswith("__")}
        agent_name, step = kwargs.pop(LOOP_COLUMN), int(kwargs["global_steps"])
        client: SeededClient | GivenAnswer = SeededClient(
            self.llm_client,
            run_seed=self.ours.spec.seed,
            partition=partition,
            step=step,
            data_index=int(kwargs["index"]),
            sample=sample,
        )
        if GIVEN in prompt:
            client = GivenAnswer(prompt[GIVEN][sample])
        loop = self._agent_loop(agent_name, client)
        sampling = self._sampling(partition, step)
        if MAX_TOKENS in prompt:
            sampling["max_tokens"] = min(prompt[MAX_TOKENS], self.rollout_config.response_length)
        try:
            return await self._answered(
                loop, agent_name, sample, kwargs, sampling, prompt.get(PROMPT_IDS, {}).get(sample)
            )
        finally:
            self.num_finished += 1

    async def advance(self, slots: Sequence[Sequence[Begun]], num_tokens: int) -> list[list[Growth]]:
        """A round of the schedule `carry`: up to so many tokens for each slot, whose rows follow one another; nothing is stored."""
        return await advance(slots, num_tokens, self._grow)

    async def _grow(self, begun: Begun, num_tokens: int) -> Growth:
        """A piece of a row; the first by the agent loop, which writes the prompt."""
        prompt, row = begun
        seed = self.ours.spec.seed
        ends = frozenset() if self.rollout_config.ignore_eos else frozenset(end_tokens(self.model_config))
        client = PieceClient(self.llm_client, row, run_seed=seed, ends=ends, num_tokens=num_tokens)
        try:
            sampling = self._sampling(TRAIN, step=0) | {"logprobs": False}
            if self.ours.sampling.rollout.keep_prefixes and row.pieces:
                sampling |= begun_under(row.pieces[0][0])
            if row.prompt_ids:
                await client.generate("", prompt_ids=row.prompt_ids, sampling_params=sampling)
            else:
                loop = self._agent_loop(self.config.actor_rollout_ref.rollout.agent.default_agent_loop, client)
                await loop.run(sampling, session_id=row.sample, **prompt)
            assert client.growth is not None  # a single-turn loop asks once
            return client.growth
        except Exception as error:
            if isinstance(error, ray.exceptions.RayActorError) or _engine_is_gone(error):
                raise  # a server that is gone answers no other row either, and its node may be
            # The row is given up and counted, as one of a whole batch is.
            logger.warning("rollout of data row %s, sample %d failed: %s", row.index, row.sample, error)
            return Growth(tokens=[], version=-1, is_complete=False, error=str(error) or type(error).__name__)
        finally:
            self.num_finished += 1

    async def cut(self) -> None:
        """Give up what is not answered yet of a batch whose answers count one by one; another one is answered to its end."""
        for answer in self._can_be_cut:
            self._is_cut = answer.cancel() or self._is_cut

    async def finished(self) -> int:
        """Trajectories that have ended so far, well or not: what a caller may take for progress."""
        return self.num_finished

    async def _answered(
        self,
        loop: Any,
        agent_name: str,
        sample: int,
        kwargs: dict[str, Any],
        sampling: dict[str, Any],
        prompt_ids: list[int] | None,
    ) -> list[Row]:
        output = await loop.run(sampling, session_id=sample, **kwargs)
        outputs: list[AgentLoopOutput] = output if isinstance(output, list) else [output]
        if not outputs or not outputs[-1].response_ids:
            raise RuntimeError(f"agent loop {agent_name} returned no response token")
        if prompt_ids is not None:
            outputs[0].prompt_ids = prompt_ids
        try:
            await self._compute_score(outputs, kwargs=kwargs | {"session_id": sample})
        except Exception as error:
            raise Unscored(error, outputs[-1].as_dict() | kwargs | {"session_id": sample}) from error
        for earlier in outputs[:-1]:
            earlier.reward_score = outputs[-1].reward_score
            earlier.extra_fields["reward_extra_info"] = outputs[-1].extra_fields["reward_extra_info"]
        if isinstance(loop, ToolDialogueLoop) and self._keeper is not None:
            self._keeper.see(loop.dialogue, outputs[-1], kwargs, sample)
        return [self._row_of(output, kwargs, sample, turn) for turn, output in enumerate(outputs)]

    def _agent_loop(self, name: str, client: SeededClient | GivenAnswer | PieceClient) -> AgentLoopBase:
        if name not in _agent_loop_registry:
            raise KeyError(f"agent loop {name!r} is not registered; known: {sorted(_agent_loop_registry)}")
        cls = hydra.utils.get_class(_agent_loop_registry[name]["_target_"])
        return cls(
            trainer_config=DictConfigWrap(config=self.config),
            server_manager=client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(self.tools),
        )

    def _row_of(self, output: AgentLoopOutput, kwargs: dict[str, Any], sample: int, turn: int) -> Row:
        fields = output.as_dict() | kwargs | {"session_id": sample}
        fields.pop("multi_modal_data", None)
        input_ids = torch.cat([fields["prompts"], fields["responses"]])
        fields |= {
            "loss_mask": fields["response_mask"],
            "input_ids": input_ids,
            "position_ids": torch.arange(len(input_ids)),
            "multi_modal_inputs": {},
        }
        extra = fields["extra_fields"]
        tag = {
            "status": "success",
            "prompt_len": len(fields["prompts"]),
            "response_len": len(fields["responses"]),
            "seq_len": len(input_ids),
            "global_steps": kwargs["global_steps"],
            "min_global_steps": extra.get("min_global_steps"),
            "max_global_steps": extra.get("max_global_steps"),
            "order": (int(kwargs["index"]), sample, turn),
        }
        return f"{kwargs['uid']}_{sample}_{turn}", fields, tag

    def _collect(
        self,
        jobs: Sequence[tuple[dict[str, Any], int]],
        results: Sequence[list[Row] | BaseException],
        report: RolloutReport,
    ) -> tuple[list[Row], set[str]]:
        """Rows in the order of the jobs; trajectories that raised are counted, logged and named by their prompt; cut ones are counted."""
        rows, failed = [], set()
        errors = [result for result in results if isinstance(result, BaseException)]
        for (prompt, sample), result in zip(jobs, results, strict=True):
            if self._is_cut and isinstance(result, asyncio.CancelledError):
                report.num_cut += 1
                continue
            if isinstance(result, BaseException):
                report.num_failed += 1
                report.first_error = report.first_error or str(result)
                failed.add(prompt["uid"])
                trace = result if result is errors[0] else None  # one trace a batch says enough
                logger.warning(
                    "rollout of data row %s, sample %d failed: %s", prompt["index"], sample, result, exc_info=trace
                )
                continue
            info = result[-1][1]["extra_fields"].get("reward_extra_info", {})
            report.num_reward_failed += int(bool(info.get("failed", 0)))
            rows.extend(result)
        return rows, failed

    def _sample(self, fields: dict[str, Any]) -> Sample:
        """An evaluation's record of one row."""
        info = fields["extra_fields"].get("reward_extra_info", {})
        is_scored = "rm_scores" in fields
        score = float(fields["rm_scores"].sum()) if is_scored else worst_score(self._reward_function)
        num_tokens = len(fields["responses"])
        return Sample(
            run_id=self.ours.run.run_id,
            step=int(fields["global_steps"]),
            data_source=str(fields["data_source"]),
            problem_index=int(fields["index"]),
            sample_index=int(fields["session_id"]),
            prompt=self.tokenizer.decode(fields["prompts"]),
            response=self.tokenizer.decode(fields["responses"], skip_special_tokens=True),
            pred=str(info.get("pred", "")),
            ground_truth=str((fields["reward_model"] or {}).get("ground_truth", "")),
            score=score,
            acc=float(info.get("acc", score > 0)),
            failed=bool(info.get("failed", not is_scored)),
            num_tokens=num_tokens,
            truncated=num_tokens >= self.rollout_config.response_length
            and int(fields["responses"][-1]) != self.tokenizer.eos_token_id,
            numbers=further_numbers(info),
        )

    async def _store(
        self, prompts: Sequence[dict[str, Any]], rows: Sequence[Row], failed: set[str], partition: str
    ) -> None:
        if rows:
            keys, fields, tags = (list(column) for column in zip(*rows, strict=True))
            await tq.async_kv_batch_put(
                keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=partition
            )
        uids = [prompt["uid"] for prompt in prompts]
        tags = [{"status": "failure" if uid in failed else "finished"} for uid in uids]
        await tq.async_kv_batch_put(keys=uids, tags=tags, partition_id=partition)


def _engine_is_gone(error: object) -> TypeGuard[Exception]:
    """Whether vLLM's engine has died, whose server's actor lives on."""
    if not isinstance(error, ray.exceptions.RayTaskError):
        return False
    return type(error.cause).__name__ == "EngineDeadError"  # of a module that only the server imports


def _take(batch: TensorDict, name: str) -> bool:
    """Take a flag out of the batch; one that is not there is false."""
    is_set = name in batch and bool(batch[name])
    batch.pop(name, None)
    return is_set


def _row(batch: TensorDict, i: int) -> dict[str, Any]:
    """The fields of prompt `i` as plain values."""
    row = {}
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            row[key] = value[i]
        elif isinstance(value, NonTensorStack):
            row[key] = value[i].data
        elif isinstance(value, NonTensorData):
            row[key] = value.data
        else:
            raise TypeError(f"prompt field {key!r} has type {type(value).__name__}")
    return row


@ray.remote
class RolloutActor(RolloutWorker):
    """`RolloutWorker` as an actor, for `rollout.agent.num_workers` >= 1."""
