"""Known values: 50-digit arithmetic, every root checked by an independent bisection.

Ratios w, old probabilities p and advantages A; c is the gradient coefficient: the gradient of a
token's objective with respect to its log-probability is c * A. Natural logarithms, 12 digits and
more.
"""


def _table(text: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, line.split())) for line in text.strip().splitlines()]


#: w, k2, k3, 1-w+w log w, w (w-1-log w), 1/w-1+log w.
POINTWISE = _table(
    """
    0.1   2.65094905524    1.40258509299    0.669741490701   0.140258509299   6.69741490701
    0.5   0.240226506959   0.19314718056    0.15342640972    0.09657359028    0.30685281944
    0.671 0.0795949707582  0.0699861420105  0.061280298711   0.046960701289   0.0913268237123
    0.8   0.0248965222466  0.0231435513142  0.0214851589486  0.0185148410514  0.0268564486858
    0.9   0.00555041912984 0.00536051565783 0.00517553590796 0.00482446409204 0.00575059545328
    1.1   0.00454201518717 0.00468982019568 0.00484119778476 0.00515880221524 0.00440108889523
    1.2   0.0166205750359  0.017678443206   0.0187858681527  0.0212141318473  0.0156548901273
    1.28  0.0304699490382  0.0331399220685  0.0359808997524  0.0424191002476  0.0281100779315
    1.422 0.0619746467154  0.069935668619   0.0786354792239  0.0994485207761  0.0552992118311
    2.0   0.240226506959   0.30685281944    0.38629436112    0.61370563888    0.19314718056
    5.0   1.29514519699    2.39056208757    4.04718956217    11.9528104378    0.809437912434
    """
)

#: Two policies over four tokens, and what the expectations under the old one are exactly.
PI_OLD = (0.5, 0.3, 0.15, 0.05)
PI_NEW = (0.4, 0.35, 0.1, 0.15)
EXPECTATIONS = {
    "kl_old_new": 0.07121572349174655,
    "kl_new_old": 0.08894064990325652,
    "tv": 0.15,
    "chi2": 0.245,
    "chi2_minus_kl": 0.1560593500967435,
    "k3_inverted": 0.05259380031777725,
    "k2": 0.05851649649926218,
}

#: Six tokens: log-probabilities and advantages; of three the product of deviations is in (1, 5).
COV_LOGP = [-0.1, -0.05, -3.0, -6.0, -0.2, -1.0]
COV_ADVANTAGES = [0.875, 0.875, 0.875, -0.9, -0.9, -0.9]
