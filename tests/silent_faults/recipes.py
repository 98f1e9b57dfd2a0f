"""The faults, their strength, their runs, and the right names of the monitor for each."""

from dataclasses import dataclass

NUM_SOUND = 4
"""Steps of a turn before its fault: what the monitor knows of the run then."""
NUM_FAULTY = 5
NUM_FAULTY_SLOW = 9
"""Of a fault that grows step by step: it has to cross the limit first."""


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A fault as it is injected."""

    done: str
    names: tuple[str, ...]
    """Findings that name it."""
    spec: str = "opd"
    """The run that can have it: a file of tests/e2e_cpu/specs."""
    is_slow: bool = False
    """It grows step by step: when it is named depends on when it crosses the limit."""
    strengths: tuple[float, float] = (0.0, 0.0)
    """In the recipe that limits are set on, and in the one that they are judged on."""

    @property
    def num_faulty(self) -> int:
        """Steps with it in a turn."""
        return NUM_FAULTY_SLOW if self.is_slow else NUM_FAULTY


INJECTED = {
    "teacher-uniform": Injected(done="the teacher's head is zero from a wake on", names=("teacher-flat",)),
    "teacher-constant": Injected(done="the teacher's hidden states are one and the same", names=("teacher-flat",)),
    "teacher-late": Injected(done="the teacher's hidden states are of the next position", names=("teacher-shifted",)),
    "teacher-early": Injected(
        done="the teacher's hidden states are of the position before", names=("teacher-shifted",)
    ),
    "labels-shifted": Injected(
        done="both models are read one position early",
        names=("teacher-shifted", "sampling", "rollout-disagrees"),
    ),
    "no-template": Injected(done="prompts are the bare question", names=("prompt-template",)),
    "wrong-template": Injected(done="prompts carry another model's header", names=("prompt-template",)),
    "too-hot": Injected(
        done="the rollout samples at a higher temperature",
        names=("sampling", "rollout-disagrees", "rollout-stale"),
        strengths=(1.6, 1.3),
    ),
    "too-cold": Injected(
        done="the rollout samples at a lower temperature",
        names=("sampling", "rollout-disagrees", "rollout-stale"),
        strengths=(0.5, 0.7),
    ),
    "clamp": Injected(
        done="the teacher's logits are so far apart that all log-probabilities but one stand at the floor",
        names=("divergence-floored",),
    ),
    "weights-frozen": Injected(done="the optimizer's step does nothing", names=("weights-frozen",)),
    "not-synced": Injected(done="the rollout gets the weights of the sync before", names=("rollout-stale",)),
    "failed-as-zero": Injected(
        done="some answers come back empty and score 0", names=("answers-failed",), strengths=(4, 3)
    ),
    "scorer-fails": Injected(
        done="the scorer fails for some answers, which score 0", names=("answers-failed",), strengths=(4, 3)
    ),
    "duplicate-prompts": Injected(done="prompts stand in a step several times", names=("duplicate-rows",), strengths=(4, 2)),
    "repeated-batch": Injected(done="every step draws the same prompts", names=("duplicate-rows",)),
    "answers-cut": Injected(done="the end token is never sampled", names=("answers-cut",)),
    "lr-zero": Injected(done="the schedule gives 0", names=("lr-zero",)),
    "noisy-sync": Injected(
        done="the rollout's weights are off by a share of their spread",
        names=("rollout-disagrees", "rollout-stale"),
        strengths=(0.2, 0.1),
    ),
    "entropy-collapse": Injected(
        done="the student's head is made sharper with each step", names=("entropy-collapse",), is_slow=True, strengths=(4.0, 3.0)
    ),
    "length-inflation": Injected(
        done="answers go on behind their end", names=("length-inflation",), strengths=(9, 8)
    ),
    "teacher-worse": Injected(
        done="the teacher's head is random", names=("teacher-no-better",), strengths=(1.0, 0.5)
    ),
    "replies-as-sampled": Injected(
        done="the conversation's mask marks tools' replies as sampled: all, or those of an even number of tokens",
        names=("tool-tokens-trained",), spec="opd-agent", strengths=(1, 2),
    ),
    "mask-lost": Injected(
        done="rows come from the agent loop without their mask: all, or those of a length that 4 divides",
        names=("tool-tokens-trained",), spec="opd-agent", strengths=(1, 4),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run's settings, on top of a file of tests/e2e_cpu/specs."""

    name: str
    sets: tuple[str, ...]
    number: int
    """Which of the strengths it takes."""
    spec: str = "opd"

    @property
    def faults(self) -> list[str]:
        """Return the names of its faults, in this order."""
        return [name for name, fault in INJECTED.items() if fault.spec == self.spec]


_AGENT = (
    "agent.max_assistant_turns=3", "agent.num_kept_trajectories=0", "data.max_response_length=192", "data.shuffle=true",
    "actor.ppo_micro_batch_size_per_gpu=16",
)  # fmt: skip

RECIPES = {
    "set-on": Recipe(name="set-on", sets=("seed=5", "data.max_response_length=10"), number=0),
    "judged-on": Recipe(
        name="judged-on",
        sets=(
            "seed=11", "opd.loss_type=jsd", "opd.beta=0.5", "data.train_batch_size=24", "rollout.num_samples=2",
            "rollout.temperature=0.9", "actor.ppo_mini_batch_size=24", "actor.ppo_micro_batch_size_per_gpu=16",
            "actor.learning_rate=2e-4", "data.max_response_length=9",
        ),
        number=1,
    ),
    "agent-set-on": Recipe(
        name="agent-set-on", sets=(*_AGENT, "seed=5", "actor.ppo_mini_batch_size=16"), number=0, spec="opd-agent"
    ),
    "agent-judged-on": Recipe(
        name="agent-judged-on",
        sets=(
            *_AGENT, "seed=11", "opd.loss_type=jsd", "opd.beta=0.5", "data.train_batch_size=12", "rollout.num_samples=2",
            "rollout.temperature=0.9", "actor.ppo_mini_batch_size=12", "actor.learning_rate=2e-4",
            "actor.ppo_micro_batch_size_per_gpu=12", "actor.log_prob_micro_batch_size_per_gpu=12",
        ),
        number=1, spec="opd-agent",
    ),
}  # fmt: skip
