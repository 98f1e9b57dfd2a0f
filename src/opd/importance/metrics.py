"""What a selection of tokens looks like in numbers."""

from torch import Tensor

from opd.importance.tokens import quantile

QUANTILES = (0.5, 0.9, 0.98)


def selection_metrics(
    kept: Tensor, row_index: Tensor, *, entropy: Tensor | None = None, divergence: Tensor | None = None
) -> dict[str, float]:
    """Metrics over all trained tokens of a batch.

    - `selected`: share of the tokens that is kept.
    - `rollouts_without`: rollouts with trained tokens of which none is kept (fewer than 1 / ratio of them).
    - `entropy_p50` ..., `divergence_p50` ...: quantiles in nats, of all tokens.
    - `divergence_covered`: share of the divergence's sum that lies on kept tokens.
    - `q1` ... `q4`: TIP's quadrants as shares of all tokens, high meaning above the median of the batch: Q1 both high,
      Q2 entropy only, Q3 divergence only, Q4 neither. `q1_selected` ...: the same of the kept tokens.

    Args:
        kept: [T] bool, one entry a trained token. row_index: [T] int64.
        entropy, divergence: [T] where they were scored.
    """
    if not len(kept):
        return {}
    num_rollouts = len(row_index.unique())
    out = {
        "selected": float(kept.double().mean()),
        "rollouts_without": float(num_rollouts - len(row_index[kept].unique())),
    }
    for name, values in (("entropy", entropy), ("divergence", divergence)):
        if values is not None:
            out |= {f"{name}_p{round(100 * q)}": float(quantile(values, q)) for q in QUANTILES}
    if divergence is not None and (total := float(divergence.double().sum())) > 0:
        out["divergence_covered"] = float(divergence[kept].double().sum()) / total
    if entropy is not None and divergence is not None:
        is_h, is_d = (values > quantile(values, 0.5) for values in (entropy, divergence))
        quadrants = {"q1": is_h & is_d, "q2": is_h & ~is_d, "q3": ~is_h & is_d, "q4": ~is_h & ~is_d}
        for name, inside in quadrants.items():
            out[name] = float(inside.double().mean())
            out[f"{name}_selected"] = float(inside[kept].double().sum()) / max(int(kept.sum()), 1)
    return out
