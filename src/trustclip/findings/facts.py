"""Every threshold of the findings, once, with its name and its reason.

Nothing else in `trustclip.findings` compares with a literal number, and neither do the guards,
which watch a training while it goes on (a test reads their source).
"""

# Gate: shares of gated tokens.
#: A gate that cuts a smaller share of the tokens hardly acts.
SELDOM = 1e-4
#: A gate that cuts a larger share limits every update: a smaller learning rate is the better way.
OFTEN = 0.2
#: The guard `gate_closed` warns above this share of cut tokens, in updates that cut any.
CLOSED = 0.5
#: A few tokens carry an update if its effective sample size is below this share of its tokens.
FEW_TOKENS = 0.5
#: A kind of token is named if its gated share is this many times the mean.
STANDS_OUT = 2.0
#: Kinds with fewer tokens are not mentioned: a single token would be 2 % of them or more.
TINY = 50
#: A controller's target is out of reach if it is at its limit in more than this share of updates.
AT_LIMIT = 0.5
#: A policy has only moved by rounding if its mean log-ratio (nats) is at most this.
STILL = 1e-5
#: With a larger mean log-ratio (nats), some token is outside the bounds of every usual clip.
OUTSIDE = 0.1

# Entropy: shares of its first value, once the change is clear of its noise.
#: Entropy counts as fallen below the first share, and as risen above the second.
FALLEN, RISEN = 0.5, 1.5
#: The guard `entropy_collapse` warns below this share: twenty healthy runs stayed above it.
NEARLY_SURE = 0.05
#: The scatter about a line is an estimate if there are at least so many values.
SCATTERED = 4

# Comparison.
#: Templates made the problems if there are at least so many families: fewer may be subjects.
FAMILIES = 10
#: With more families per problem than this, ids are alike by chance.
ALIKE = 0.5

# Learning signal.
#: The problems are solved above this mean reward: lower entropy and idle groups are expected.
SOLVED = 0.8
#: The guard `entropy_collapse` does not warn from this share of right answers on, where a low
#: entropy is expected.
MASTERED = 0.9
#: A fall of the reward between two generations is more than chance above so many standard errors.
DROPPED = 6.0
#: The reward has improved, and the length of completions has grown, by at least these factors.
IMPROVED, GROWN = 2.0, 1.5
#: Sampling is wasted if more than this share of groups, or completions, has no advantage.
IDLE = 0.3
#: A loss is 0 up to this size, where the gradient is this many times as large: at ratio 1, with
#: advantages that sum to 0 in each group, its value says nothing.
NO_LOSS, LOSS_HAS_GRADIENT = 1e-3, 10.0
#: Rewards are partly about length if more than this share of the completions is truncated.
TRUNCATED = 0.1
#: A run cannot learn if this share is truncated, unreadable or idle at its start.
HOPELESS = 0.8
#: With fewer test problems than this, a score may be off by 18 points or more.
FEW_PROBLEMS = 30
#: The guard `truncated` warns from this share of truncated completions on.
ALL_CUT = 0.95

# Sampler: distances between sampler and trainer.
#: Up to this distance (k3, nats per token) the two differ by rounding.
ROUNDING = 1e-8
#: Above this distance (k3) they differ by more than half precision makes.
LARGE = 5e-3
#: The same limit holds for the mean absolute log-ratio, in nats.
ABSOLUTE = 0.1
#: The same limit for the mean of e^|log-ratio| is that of NeMo RL's own tests.
EXP_ABSOLUTE = 1.05
#: This is normal between trainer and sampler (docs/sampler.md has the sources).
NORMAL = (
    "a mean absolute log-ratio of up to 1e-4 in float32, 0.005 to 0.05 with bfloat16 on either "
    "side, about 0.06 with 8-bit weights; a KL divergence of 2e-4 for dense models and about ten "
    "times that for mixtures of experts"
)
#: Few completions carry an update if its effective sample size is below this share of them.
FEW = 0.3
#: A sentence mentions the growth of the distance over a run if it exceeds this factor.
WORSENED = 2.0
#: A sentence names so many tokens.
NAMED = 3

# Scores.
#: A difference counts as found up to this corrected p; every interval has this level.
ALPHA, LEVEL = 0.05, 0.95
#: Above this share of lost answers, the difference is also given with lost counted as wrong.
LOST = 0.01
#: A run has collapsed if it ends below this share of its best score, and the fall is significant
#: by problem at this p: some unlucky samples are no collapse.
LEFT, FELL = 0.7, 0.01
#: From so many runs on, a 95 % interval of their mean holds the true mean in about 95 % of cases,
#: even if one run in four collapses (`collapses` of benchmarks/coverage.py).
ENOUGH_RUNS = 10
#: A list in a sentence has so many entries, a page so many sentences of a kind; more are counted.
SHOWN, EACH = 6, 3

# Guards: patience, in consecutive rows, is 10 for generations and less for what cannot be chance.
#: The share of skipped updates is over the last so many; a shorter run counts as `SHORTEST`.
SKIP_WINDOW, SHORTEST = 50, 20
#: A run ends above this share of skipped updates: the cause is not a rare bad batch.
MAX_SKIPPED = 0.1
#: The initial entropy of a run is the median over this many first rows.
FIRST_ROWS = 5
#: A spike is this many times the largest of the rows before it, of which there must be enough.
SPIKE, SPIKE_WINDOW, SPIKE_AFTER = 10.0, 50, 20
#: So many consecutive rows must show a failure before it is reported.
PATIENCE = {"entropy_collapse": 3, "constant_reward": 10, "truncated": 3, "gate_closed": 5}

# Trends over generations: metrics of the sampler are noisy between generations, and every new one
# is a new test, so these are far out (`benchmarks/sampler_guards.py` measures how often noise
# passes them, and how soon a trend does).
#: A trend is over the last so many generations, and needs the second number of them.
WINDOW, FEWEST = 60, 12
#: A slope is a trend from so many standard errors on, if its line covers at least this factor.
SIGNIFICANT, FACTOR = 6.0, 2.0
#: Fresh samples that differ by this factor more than any generation before are no noise.
JUMP = 3.0
#: A trend of the sampler is worth a warning above this distance (k3, nats per token), and a rise
#: of entropy above this one (nats).
LEAST_MISMATCH, LEAST_RISE = 1e-6, 0.2
#: For fresh samples the limit is a mean absolute log-ratio (nats): kernels alone make 1e-5, and
#: half precision 0.03.
LEAST_FRESH = 1e-4

# Sampler against trainer token by token, d = log p(trainer) - log p(sampler), nats
# (`trustclip doctor --sampler`, and the check before the first update). Sizes are judged against
# the noise floor, the trainer against itself, where that was measured; else against published ones.
#: Fewer tokens than this do not show a cause.
FEWEST_TOKENS = 50
#: float32 makes at most these differences, on average and on a single token.
KERNELS, KERNELS_MOST = 1e-4, 1e-2
#: Half precision makes at most this mean difference: published engines have 0.005 to 0.05.
HALF_PRECISION = 0.05
#: Without a floor, noise on both sides means other weights only above this mean difference.
OTHER_WEIGHTS = 0.1
#: With a floor, the same two limits are multiples of it: half precision in a real engine makes 1.0
#: to 1.2 floors, 8-bit weights make 2 (`benchmarks/sampler_pairs.py`).
WITHIN_FLOOR, OTHER_THAN_FLOOR = 1.5, 3.0
#: Neither is the cause between so many times what kernels make and this share of half precision.
ABOVE_KERNELS, BELOW_HALF = 10.0, 0.5
#: float16 and TF32 make an eighth of bfloat16's noise (three bits more), within this factor.
FINER, FINER_FACTOR = 0.125, 2.0
#: A temperature is the cause if it explains this share of the variance of d to first order (the
#: second, if a difference exceeds `FAR`). From the third on its size is stated.
EXPLAINED, EXPLAINED_FAR, EXACT = 0.8, 0.4, 0.9
#: Top-p and top-k explain a mean difference of at most so many nats.
FAR = 2.0
#: Differences have two sides if the smaller side's sum is at least this share of the other's.
ONE_SIDED = 0.1
#: The largest 2 % are outliers if they have this share of all differences, at a lower median.
OUTLIERS, OUTLIERS_MEDIAN = 0.9, 0.01
#: A token is in the tail if it differs by this many medians, each difference over 1 - p, and by
#: these nats; a tail has this share of all squared differences, and a share of the tokens in here.
TAIL, TAIL_LEAST, TAIL_WEIGHT, TAIL_TOKENS = 8.0, 0.1, 0.5, (0.01, 0.2)
#: A mean ratio differs from 1 by so many standard errors, and by this share below or above. With a
#: larger standard deviation of the differences, ratios are too skewed for a mean.
SHIFT, SHIFT_BELOW, SHIFT_ABOVE, SKEWED = 6.0, 0.015, 0.05, 0.5
#: Another prompt shows most on so many first tokens of a completion: their mean difference is so
#: many times that of the others, and so many standard errors above it.
EARLY, EARLY_TIMES, EARLY_ERRORS = 3, 2.0, 4.0
#: A difference grows with the context, or with the age of a sample, if the last part of it has this
#: many times the first one's mean, each over 1 - p, and is this many standard errors above it.
GROWS, GROWS_ERRORS = 2.5, 6.0
#: The mean of a part is compared if it has at least so many tokens.
PART = 30
#: Tokens are likelier, or less likely, than their entropy says by so many standard errors and nats.
SURPRISE, SURPRISE_MEAN = 5.0, 0.03
#: On equal weights, the noise of two passes alone may make a gate cut this share of the tokens.
CUT_BY_NOISE = 0.01
