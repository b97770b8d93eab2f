"""Every threshold of the findings, once, with its name and its reason.

Nothing else in `trustclip.findings` compares with a literal number, and neither do the guards,
which watch a training while it goes on (a test reads their source).
"""

# Gate: shares of gated tokens.
#: Below this share a gate hardly acts: of 10,000 tokens it cuts none.
SELDOM = 1e-4
#: Above this one it limits every update, and a smaller step would be the honest way to do so.
OFTEN = 0.2
#: In updates that gate any token, the share at which a training has stopped (a guard).
CLOSED = 0.5
#: Effective sample size, share of the tokens of an update, below which a few of them carry it.
FEW_TOKENS = 0.5
#: A kind of token is named if its gated share is this many times the mean.
STANDS_OUT = 2.0
#: Fewest tokens of a kind whose gated share is named: of fewer, one token is 2 % and more.
TINY = 50
#: Share of updates at a controller's limit above which its target is out of reach.
AT_LIMIT = 0.5
#: Mean log-ratio up to which a policy has not moved but for rounding, nats.
STILL = 1e-5
#: Mean log-ratio (nats) beyond which some token is outside the bounds of every usual clip.
OUTSIDE = 0.1

# Entropy: shares of its first value, once the change is clear of its noise.
#: Below the one it counts as fallen, above the other as risen.
FALLEN, RISEN = 0.5, 1.5
#: Below this share it has collapsed (a guard): twenty healthy runs stay above.
COLLAPSED = 0.05
#: Fewest values whose scatter about a line is an estimate.
SCATTERED = 4

# Comparison.
#: Fewest families of problems that templates made: fewer are subjects, or one task.
FAMILIES = 10
#: Most families for each problem: with more, ids are alike by chance.
ALIKE = 0.5

# Learning signal.
#: Mean reward above which lower entropy and idle groups are expected: the problems are solved.
SOLVED = 0.8
#: Share of right answers above which a collapse of the entropy is none (a guard, which stays quiet
#: about a run that may still be learning).
MASTERED = 0.9
#: Standard errors by which a fall of the reward from one generation to the next is no chance.
DROPPED = 6.0
#: Factor by which the reward counts as improved, and the length of completions as grown.
IMPROVED, GROWN = 2.0, 1.5
#: Share of groups, or of completions, without any advantage above which sampling is wasted.
IDLE = 0.3
#: A loss is 0 up to this size, where the gradient is this many times as large: at ratio 1, with
#: advantages that sum to 0 in each group, its value says nothing.
NO_LOSS, LOSS_HAS_GRADIENT = 1e-3, 10.0
#: Share of truncated completions above which rewards are partly about length.
TRUNCATED = 0.1
#: Share of truncated, unreadable or idle ones at the start of a run above which it cannot learn.
HOPELESS = 0.8
#: With fewer test problems than this, a score may be off by 18 points or more.
FEW_PROBLEMS = 30
#: Share of truncated completions that leaves nothing to learn from (a guard).
ALL_CUT = 0.95

# Sampler: distances between sampler and trainer.
#: Up to this distance (k3, nats per token) the two differ by rounding.
ROUNDING = 1e-8
#: From this one on (k3) they differ by more than half precision makes.
LARGE = 5e-3
#: The same for the mean absolute log-ratio, nats.
ABSOLUTE = 0.1
#: The same for the mean of e^|log-ratio|: the limit of NeMo RL's own tests.
EXP_ABSOLUTE = 1.05
#: What is normal between trainer and sampler, by precision and model (docs/sampler.md has sources).
NORMAL = (
    "a mean absolute log-ratio of up to 1e-4 in float32, 0.005 to 0.05 with bfloat16 on either "
    "side, about 0.06 with 8-bit weights; a KL divergence of 2e-4 for dense models and about ten "
    "times that for mixtures of experts"
)
#: Effective sample size, share of the completions, below which few of them carry an update.
FEW = 0.3
#: Growth of the distance over a run that is worth a sentence.
DRIFTED = 2.0
#: Tokens named in a sentence, and listed in a table of each run.
NAMED, LISTED = 3, 10

# Scores.
#: Corrected p up to which a difference counts as found, and the level of every interval.
ALPHA, LEVEL = 0.05, 0.95
#: Share of lost answers above which the difference is also given with lost counted as wrong.
LOST = 0.01
#: A run has collapsed if it ends below this share of the best score it had, and the fall is
#: significant by problem at this p: some unlucky samples are no collapse.
KEPT, FELL = 0.7, 0.01
#: From this many runs on, an interval of their mean covers about as often as it says although one
#: run in four collapses (`collapses` of benchmarks/coverage.py).
ENOUGH_RUNS = 10
#: Entries of a list in a sentence, and sentences of one kind on a page; the rest are counted.
SHOWN, EACH = 6, 3

# Guards: patience, in consecutive rows, is 10 for generations and less for what cannot be chance.
#: Updates over which the share of skipped ones is computed; a shorter run counts as `SHORTEST`.
SKIP_WINDOW, SHORTEST = 50, 20
#: Share of skipped updates above which a run ends: the cause is not a rare bad batch.
MAX_SKIPPED = 0.1
#: The initial entropy of a run is the median over this many first rows.
FIRST_ROWS = 5
#: A spike is this many times the largest of the rows before it, of which there must be enough.
SPIKE, SPIKE_WINDOW, SPIKE_AFTER = 10.0, 50, 20
#: Rows in a row that show a failure before it is reported.
PATIENCE = {"entropy_collapse": 3, "constant_reward": 10, "truncated": 3, "gate_closed": 5}

# Trends over generations: metrics of the sampler are noisy between generations, and every new one
# is a new test, so these are far out (`benchmarks/sampler_guards.py` measures how often noise
# passes them, and how soon a trend does).
#: Generations that a trend is over, and the fewest of them.
WINDOW, FEWEST = 60, 12
#: Standard errors from which on a slope is no noise, and factor that the trend line covers.
SIGNIFICANT, FACTOR = 6.0, 2.0
#: Factor between fresh samples and those of any generation before them that is no noise.
JUMP = 3.0
#: Distance of the sampler (k3, nats per token) below which its trend is not worth a warning, and a
#: rise of entropy that matters, nats.
LEAST_MISMATCH, LEAST_RISE = 1e-6, 0.2
#: The same (mean absolute log-ratio, nats) for fresh samples: kernels alone make 1e-5, and half
#: precision 0.03.
LEAST_FRESH = 1e-4

# Sampler against trainer token by token, d = log p(trainer) - log p(sampler), nats
# (`trustclip doctor --sampler`, and the check before the first update). Sizes are judged against
# the noise floor, the trainer against itself, where that was measured; else against published ones.
#: Fewer tokens than this carry no mark.
FEWEST_TOKENS = 50
#: Differences that float32 makes: mean and largest.
KERNELS, KERNELS_MOST = 1e-4, 1e-2
#: Mean difference of healthy half precision without a floor: published engines make 0.005 to 0.05.
HALF_PRECISION = 0.05
#: Mean difference, without a floor, below which noise on both sides is not taken for other weights.
OTHER_WEIGHTS = 0.1
#: The same two in floors: half precision in a real engine is 1.0 to 1.2 of the trainer's own, 8-bit
#: weights are 2 (`benchmarks/sampler_pairs.py`).
WITHIN_FLOOR, OTHER_THAN_FLOOR = 1.5, 3.0
#: Between so many times what kernels make and this share of half precision lies neither.
ABOVE_KERNELS, BELOW_HALF = 10.0, 0.5
#: float16 and TF32 have three bits more than bfloat16: an eighth of its noise, within a factor.
FINER, FINER_FACTOR = 0.125, 2.0
#: Correlation of d with the trainer's own change of precision from which on it is that change.
FOLLOWS = 0.2
#: Share of the variance of d that a temperature explains to first order; the same where a
#: difference exceeds `FAR`; and from which on its size is stated.
EXPLAINED, EXPLAINED_FAR, EXACT = 0.8, 0.4, 0.9
#: No truncated distribution leaves out so much of itself, nats.
FAR = 2.0
#: Least sum of one side's differences over that of the other, for two sides.
ONE_SIDED = 0.1
#: Outliers: the largest 2 % have this share of all differences, and the median is below that.
OUTLIERS, OUTLIERS_MEDIAN = 0.9, 0.01
#: A token is in the tail if it differs by this many medians, each difference over 1 - p, and by
#: these nats; a tail has this share of all squared differences, and a share of the tokens in here.
TAIL, TAIL_LEAST, TAIL_WEIGHT, TAIL_TOKENS = 8.0, 0.1, 0.5, (0.01, 0.2)
#: A mean ratio is off 1 by these standard errors; and by this share below it, or above. Beyond this
#: standard deviation of the differences ratios are too skewed for a mean.
SHIFT, SHIFT_BELOW, SHIFT_ABOVE, SKEWED = 6.0, 0.015, 0.05, 0.5
#: Tokens at the beginning of a completion, on which another prompt shows most: in a mean difference
#: of this many times that of the others, and this many standard errors above it.
EARLY, EARLY_TIMES, EARLY_ERRORS = 3, 2.0, 4.0
#: A difference grows with the context, or with the age of a sample, if the last part of it has this
#: many times the first one's mean, each over 1 - p, and is this many standard errors above it.
GROWS, GROWS_ERRORS = 2.5, 6.0
#: Fewest tokens of a part whose mean is compared.
PART = 30
#: Standard errors and nats by which tokens are likelier, or less likely, than their entropy says.
SURPRISE, SURPRISE_MEAN = 5.0, 0.03
#: Share of tokens, on equal weights, that a gate may cut by the noise of two passes alone.
CUT_BY_NOISE = 0.01
