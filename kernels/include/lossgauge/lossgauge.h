/* lossgauge: cross-entropy for LLM training that can be read like a gauge. The C ABI of liblossgauge.so.
 *
 * Conventions
 *  1. Every function that can fail returns an lg_code (the numbers of google.rpc.Code; LG_OK is 0). The message of the last
 *     failure on this thread is lg_last_error(); it names the argument, what was expected and what was got.
 *  2. Nothing here prints, aborts, throws, installs a signal handler, or blocks on a reader, a device or another process.
 *  3. Structures of arguments begin with `struct_size`. Fill them with their ..._init function, then set fields: a
 *     library newer than the caller uses defaults for the fields that the caller does not know.
 *  4. A function that fails has written no output and no telemetry. Arguments are checked before anything is computed.
 *     One exception: linear cross-entropy on a device is many launches, and a driver or cuBLASLt may refuse one in the middle (LG_UNAVAILABLE,
 *     LG_RESOURCE_EXHAUSTED). Then outputs are undefined, the step's counters hold part of the call, and a graph being captured is not to be used.
 *  5. `gauge` may be NULL wherever it is an argument of a loss call: no telemetry, the same loss and gradient bits.
 *  6. lg_gauge_open always yields a usable handle unless an argument is invalid. When the ring cannot be made (no space, no
 *     permission, a second producer), it returns the reason and a gauge whose telemetry is off; every later call on it succeeds
 *     and does nothing. Telemetry faults never change a loss, a gradient or a return code of a loss call.
 *  7. A gauge belongs to the process that opened it. In a forked child its calls do nothing and return LG_FAILED_PRECONDITION.
 *     A gauge counts in one place: on the device of the first counted call there, once there was one. From then on loss calls on other
 *     memory (the host's, another device's) give their result uncounted, and lg_gauge_state.dropped_calls says how many; so it does of launches
 *     on the host in the step in which the gauge met its device.
 *  8. Loss calls on one gauge may come from several threads at once. lg_gauge_publish and the setters of a step come from one.
 *  9. Tensors are described by pointer, sizes and strides in elements. No byte outside of them is touched. dtypes are LG_DTYPE_*.
 * 10. NaN is never a default. A pointer that may be NULL says so.
 *
 * Terms (nll_sum, finite rows F, log Z, ...) are those of README.md, "Terms". Lengths in nats, counts in tokens.
 */
#ifndef LOSSGAUGE_LOSSGAUGE_H_
#define LOSSGAUGE_LOSSGAUGE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(LOSSGAUGE_BUILDING) && defined(__GNUC__)
#define LG_API __attribute__((visibility("default")))
#else
#define LG_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lg_code {
  LG_OK = 0,
  LG_INVALID_ARGUMENT = 3,
  LG_NOT_FOUND = 5,
  LG_ALREADY_EXISTS = 6, /* another live producer of the same run, attempt and rank */
  LG_PERMISSION_DENIED = 7,
  LG_RESOURCE_EXHAUSTED = 8, /* no space for the ring, no memory */
  LG_FAILED_PRECONDITION = 9, /* closed gauge, forked child, host value during graph capture */
  LG_OUT_OF_RANGE = 11,
  LG_UNIMPLEMENTED = 12, /* not in this build, for example CUDA tensors in a CPU build */
  LG_INTERNAL = 13,
  LG_UNAVAILABLE = 14 /* the directory or the device cannot be reached */
} lg_code;

/* Message of the last failure on this thread; "" if there was none. Valid until the next failing call on this thread. */
LG_API const char* lg_last_error(void);
/* "0.1.0" */
LG_API const char* lg_version(void);
/* Name of the backend variant in use on this machine's CPU: "avx512", "avx2" or "baseline". LOSSGAUGE_CPU_ISA lowers it. */
LG_API const char* lg_cpu_variant(void);

/* dtypes: values shared with the ring ABI. */
typedef enum lg_dtype {
  LG_FP32 = 0,
  LG_BF16 = 1,
  LG_FP16 = 2,
  LG_FP64 = 3, /* scalars only */
  LG_INT32 = 16,
  LG_INT64 = 17
} lg_dtype;

/* ---- gauge ------------------------------------------------------------------------------------------------------------ */

/* The telemetry handle of one rank of one run. Opaque. */
typedef struct lg_gauge lg_gauge;

/* One parallel axis: number of ranks along it and this rank's index, 0 <= index < size. */
typedef struct lg_axis_option {
  int32_t size; /* >= 1; default 1 */
  int32_t index; /* default 0 */
} lg_axis_option;

typedef enum lg_gradient_reduction {
  LG_REDUCTION_OVER_RANKS_UNKNOWN = 0, /* the denominator rule cannot be judged */
  LG_REDUCTION_OVER_RANKS_SUM = 1,
  LG_REDUCTION_OVER_RANKS_MEAN = 2 /* DDP and FSDP average */
} lg_gradient_reduction;

typedef struct lg_gauge_options {
  size_t struct_size;
  const char* run; /* stable name across restarts, not empty; beyond 255 bytes it is cut and ends in a hash; NULL = LOSSGAUGE_RUN, else an error */
  const char* attempt; /* NULL = from the launcher (LOSSGAUGE_ATTEMPT, torchelastic, Slurm); required if world_size > 1 and none is found; beyond 127 bytes as `run` */
  int64_t attempt_start_wall_ns; /* of rank 0, if it was shared between ranks; 0 = this rank's own clock */
  int32_t rank; /* -1 = RANK or SLURM_PROCID, else 0 if world_size is 1 */
  int32_t world_size; /* 0 = WORLD_SIZE or SLURM_NTASKS, else 1 */
  lg_axis_option dp; /* size 0 = world_size / (tp * pp * cp), index derived when all others are 1 */
  lg_axis_option tp, pp, cp, ep;
  int32_t has_loss; /* default 1 */
  int32_t gradient_reduction; /* lg_gradient_reduction */
  int64_t vocab_size; /* V over all shards; 0 = not known (observe only) */
  int64_t shard_offset; /* default 0 */
  int64_t shard_columns; /* 0 = vocab_size - shard_offset */
  double label_smoothing; /* declared value, for the record */
  double z_loss_weight;
  const char* ring_dir; /* NULL = LOSSGAUGE_RING_DIR, else /dev/shm/lossgauge-<uid> */
  const char* group; /* NULL = the process's; name of a group that may read the ring */
  const uint8_t* token_bytes; /* UTF-8 bytes of each token, [vocab_size]; copied. NULL = no bits per byte */
  const char* const* block_names; /* names of counter blocks, at most 8; NULL = {"train", "eval"} */
  int32_t block_count;
  int64_t first_step; /* number of the first step to be published; default 0 */
} lg_gauge_options;

LG_API void lg_gauge_options_init(lg_gauge_options* options);
/* Opens a gauge (convention 6). *gauge is NULL only after LG_INVALID_ARGUMENT or when no memory is left. */
LG_API int lg_gauge_open(const lg_gauge_options* options, lg_gauge** gauge);
/* A clean end: waits for steps that a device still publishes, publishes LG_EVENT_END, stops the heartbeat, frees the handle. NULL is allowed. The
 * ring stays for the reader. A call with a handle that is closed is LG_FAILED_PRECONDITION as long as it is among the 64 closed last. A CUDA graph that
 * holds calls with the gauge may be replayed all the same: losses and gradients are right, nothing is counted, and some device memory is kept for it.
 * A gauge that counts on a device waits for all work of that device: not to be called while one of its streams is being captured, or the capture is lost. */
LG_API int lg_gauge_close(lg_gauge* gauge, const char* reason);
/* The job failed by its own judgement: as lg_gauge_close, but the run is not shown as finished. */
LG_API int lg_gauge_abandon(lg_gauge* gauge, const char* reason);

typedef struct lg_gauge_state {
  size_t struct_size;
  int32_t telemetry_on;
  int32_t code; /* why it is off, or, while it is on, why calls on a device are not counted; lg_code */
  char message[512];
  char steps_path[512]; /* ring file of step records; "" when off */
  int64_t next_step; /* as the host knows it: replays of a graph count on by themselves, on the device */
  uint64_t published; /* step records in the ring since open; those of steps that a device has yet to end are not among them */
  uint64_t dropped_calls; /* calls that counted nothing: forked child, telemetry off, not where the gauge counts, values that cannot be read */
  uint64_t ring_bytes;
} lg_gauge_state;
LG_API int lg_gauge_get_state(const lg_gauge* gauge, lg_gauge_state* state);

typedef enum lg_phase {
  LG_TRAIN = 0,
  LG_WARM_UP = 1, /* loss calls without an explicit block go to block 1 ("eval") and not into the step */
  LG_EVALUATION = 2, /* likewise */
  LG_CHECKPOINT = 3,
  LG_DATA_LOADING = 4,
  LG_OTHER = 5
} lg_phase;

/* Phases nest by name, not by stack: begin of an open phase and end of one that is not open are LG_FAILED_PRECONDITION. */
LG_API int lg_gauge_phase_begin(lg_gauge* gauge, int32_t phase);
LG_API int lg_gauge_phase_end(lg_gauge* gauge, int32_t phase);
LG_API int lg_gauge_checkpoint_saved(lg_gauge* gauge, int64_t step, const char* path);
/* The job goes on after `step`; the next published step is step + 1. `path` may be NULL. */
LG_API int lg_gauge_resume(lg_gauge* gauge, int64_t step, const char* path);
LG_API int lg_gauge_evaluation(lg_gauge* gauge, int64_t step, double loss_nats, int64_t tokens);
LG_API int lg_gauge_note(lg_gauge* gauge, int64_t step, const char* text);

typedef enum lg_scalar {
  LG_GRAD_NORM = 0, /* the job's own global gradient norm */
  LG_LEARNING_RATE = 1,
  LG_DENOMINATOR = 2 /* what the job divided by, when the loss calls returned sums; tokens, > 0 */
} lg_scalar;

/* Values of the step being built; they go into the next published record and are then forgotten. Any double is legal (a NaN
 * gradient norm is a finding), except a denominator that is not finite and positive. */
LG_API int lg_gauge_set_scalar(lg_gauge* gauge, int32_t scalar, double value);
/* The same from memory that is read at publish, on the publishing stream. dtype LG_FP32 or LG_FP64. */
LG_API int lg_gauge_set_scalar_pointer(lg_gauge* gauge, int32_t scalar, const void* value, int32_t dtype);

typedef struct lg_reported_loss {
  size_t struct_size;
  double value; /* the loss that the trainer logs, nats per token */
  int32_t dtype; /* lg_dtype it was kept in; default LG_FP32 */
  int64_t interval; /* steps it averages over, ending with this one; default 1 */
  double auxiliary; /* declared auxiliary terms contained in value; default 0 */
} lg_reported_loss;
LG_API void lg_reported_loss_init(lg_reported_loss* reported);
LG_API int lg_gauge_set_reported_loss(lg_gauge* gauge, const lg_reported_loss* reported);

/* For jobs that do not use our loss kernels. Adds to the step (`block` -1 = by phase). */
typedef struct lg_observation {
  size_t struct_size;
  int32_t block; /* -1 */
  double nll_sum; /* nats, over finite_tokens; 0 or more; NaN or infinite: all unmasked rows count as non-finite */
  int64_t tokens; /* positions seen */
  int64_t unmasked_tokens;
  int64_t nonfinite_rows; /* rows kept out of nll_sum */
  double denominator; /* 0 = not given */
  void* stream; /* cudaStream_t on which a gauge with counters on a device adds it, and which gives a gauge that has none yet counters on its
                   device; NULL on the CPU backend */
  /* Memory of the gauge's device (of the host, while it counts there), read on `stream` instead of the member of the same name; NULL = not. What is read
   * is not refused: a count out of range becomes the nearest in it, a sum below 0 is like one that is not finite, a denominator that is none is not given.
   * In a graph sum and count must be read so. A pointer to memory of a device gives a gauge that has none yet counters there. */
  const double* nll_sum_pointer;
  const int64_t* unmasked_tokens_pointer; /* then tokens 0 = as many as this */
  const double* denominator_pointer;
} lg_observation;
LG_API void lg_observation_init(lg_observation* observation);
LG_API int lg_gauge_observe(lg_gauge* gauge, const lg_observation* observation);

/* Ends the step: folds the counters into one record for each block that was added to (and always one for block 0), writes the ring,
 * zeroes the counters, counts the step up. Never waits. `stream` is a cudaStream_t, NULL on the CPU backend. */
LG_API int lg_gauge_publish(lg_gauge* gauge, void* stream);
/* Sets the number of the step being built (default: one more than the last). */
LG_API int lg_gauge_set_step(lg_gauge* gauge, int64_t step);

/* ---- cross-entropy on existing logits ------------------------------------------------------------------------------------ */

typedef enum lg_loss_reduction {
  LG_MEAN = 0, /* sum / denominator */
  LG_SUM = 1,
  LG_NONE = 2 /* per-token losses; upstream is per token */
} lg_loss_reduction;

/* loss_i = (1-e) * (log Z - z[y]) + e * (log Z - mean over V of z) + lambda * (log Z)^2,  z = softcap(logit_scale * logits),
 * softcap(x) = c * tanh(x / c). Gradient: (p * (1 + 2 lambda log Z) - (1-e) onehot - e/V) * dz/dlogits * upstream * grad_scale / denominator.
 * Masked rows (target == ignore_index) are not read and get gradient 0. Others: kernels/README.md, "Rows that are not ordinary". */
typedef struct lg_cross_entropy_args {
  size_t struct_size;
  /* logits [rows, columns], unit column stride */
  const void* logits;
  int32_t logits_dtype; /* LG_FP32, LG_BF16, LG_FP16 */
  int64_t rows, columns; /* >= 0, >= 1 */
  int64_t row_stride; /* elements between rows; 0 = columns */
  int64_t vocab_size; /* real columns, 1 to columns; 0 = columns. The rest is padding: never read, gradient 0 */
  /* targets [rows] */
  const void* targets;
  int32_t target_dtype; /* LG_INT32, LG_INT64 */
  int64_t target_stride; /* elements; default 1 */
  int64_t ignore_index; /* default -100 */
  double label_smoothing; /* e in [0, 1) */
  double z_loss_weight; /* lambda, up to 1e30; 0 = no work, no change of a bit */
  double logit_scale; /* default 1; magnitude from 1e-30 to 1e30 */
  double logit_softcap; /* c, from 1e-30 to 1e30; 0 = off */
  /* reduction */
  int32_t reduction; /* lg_loss_reduction, default LG_MEAN */
  double denominator; /* tokens; 0 = the number of unmasked rows of this call */
  const double* denominator_pointer; /* scalar read when the call runs; NULL = use `denominator` */
  /* outputs, each may be NULL = not wanted, not written; apart from each other and from what is read, but for grad_logits == logits */
  float* losses; /* [rows] objective of each row, unreduced; 0 at masked rows, NaN / +inf at non-finite ones */
  float* log_z; /* [rows]; 0 at masked rows */
  float* loss; /* scalar: the reduced objective over finite rows; NaN if a row is non-finite, 0 if no row is unmasked */
  void* grad_logits; /* [rows, columns] of the logits' dtype; == logits (same stride) means in place */
  int64_t grad_row_stride; /* elements; 0 = columns */
  /* upstream gradient, folded in before rounding */
  const float* upstream; /* NULL = 1 */
  int64_t upstream_stride; /* 0 = one scalar for all rows; per token otherwise */
  const float* grad_scale; /* device scalar such as an AMP scale; NULL = 1 */
  /* telemetry */
  lg_gauge* gauge; /* may be NULL */
  int32_t block; /* -1 = by phase: "train", or "eval" during evaluation and warm-up */
  int64_t position_base; /* position in the step of row 0 */
  const int64_t* positions; /* [rows] original positions of compacted rows, replaces position_base + i; may be NULL */
  /* execution */
  void* stream; /* cudaStream_t; NULL on the CPU */
  int32_t threads; /* CPU: 0 = all cores; >= 1 */
} lg_cross_entropy_args;

LG_API void lg_cross_entropy_args_init(lg_cross_entropy_args* args);
LG_API int lg_cross_entropy(const lg_cross_entropy_args* args);

/* A later upstream gradient. With kept logits (args->logits not overwritten): recomputes args->grad_logits with args->upstream exactly, adding
 * nothing to the gauge. After an in-place call: use lg_scale_gradient. */
LG_API int lg_cross_entropy_backward(const lg_cross_entropy_args* args);
/* grad *= upstream (scalar, or per row with stride): 1 leaves it untouched, a power of two is exact, anything else costs one more rounding;
 * 0 gives exactly 0, also where the gradient is not finite. */
typedef struct lg_scale_gradient_args {
  size_t struct_size;
  void* grad;
  int32_t dtype;
  int64_t rows, columns, row_stride;
  const float* upstream;
  int64_t upstream_stride;
  void* stream;
  int32_t threads;
} lg_scale_gradient_args;
LG_API void lg_scale_gradient_args_init(lg_scale_gradient_args* args);
LG_API int lg_scale_gradient(const lg_scale_gradient_args* args);

/* Reads the logits once for their signals: no gradient, no loss output. Same arguments; output pointers must be NULL. */
LG_API int lg_observe_logits(const lg_cross_entropy_args* args);

/* ---- linear cross-entropy: logits = hidden W^T + bias, never held whole ------------------------------------------------ */

/* The loss head of a model without its logits: the rows are taken in chunks; of each chunk the logits are formed (products summed in fp32, rounded
 * to logits_dtype), turned into their gradient in place, and multiplied out into the gradients of hidden states and head. Masked rows are left out
 * before the products. At no time are more logits held than those of one chunk.
 *
 *   grad_hidden = G W, grad_weight (+)= G^T hidden, grad_bias (+)= column sums of G,  G = d objective / d logits, [chunk, columns]
 *
 * Results do not depend on the chunk size beyond the rounding of fp32 sums; the same chunk size gives the same bits (on a device: by the same algorithms,
 * see below). A row that is not finite is NaN in grad_hidden and makes grad_weight and grad_bias NaN, as its logits' gradient would.
 *
 * On a device:
 * - With most_unmasked_rows -1, a direct call runs every chunk, since it must not ask the device how many rows there are: 8192 rows of which a quarter is
 *   ignored take 1.00 times the three products over all rows; told, 0.78. A call that is captured into a CUDA graph leaves out at each replay the chunks
 *   that have no unmasked row then (0.785 there), by conditional nodes where the driver has them: such a graph cannot be a child of another one. The bits are
 *   those of the direct call, by the same algorithms.
 * - Products are cuBLASLt's first choice, or what lg_linear_cross_entropy_prepare found: once for each shape in a process, and another one than the first choice
 *   only if it is 2 % faster. So bits may differ between calls (and captures) before and after a prepare, between pointers of other alignment, and, where
 *   times are close to that limit, between processes. Without prepare they do not differ between processes on the same software and device.
 * - With workspace NULL, a captured call uses the workspace of the stream that it is captured on. Two such graphs of one stream, or one of them and other calls
 *   on that stream, must not run at the same time, and a replay elsewhere must come behind the call that took the memory (prepare waits for it). Nothing
 *   detects it, and loss and gradients are wrong then. A graph that may run beside others needs a workspace of its own.
 * - grad_weight in 16 bits takes its fp32 sums in the workspace and one pass over both at the end (3 GB at 128256 x 4096), unless there is but one chunk.
 * - 16-bit logits may be rounded once more before the bias is added.
 *
 * Gradient signals: hidden_grad_sq_sum over rows whose upstream is finite and not 0, absent if one's is not. head_grad_sq_sum is of grad_weight as it stands
 * after the call, less what it was before with `accumulate`: the calls of a step add up to the square of what they leave. Absent with an upstream per
 * token, or if grad_weight is not finite or lacks rows (most_unmasked_rows). */
typedef struct lg_linear_cross_entropy_args {
  size_t struct_size;
  /* hidden [rows, width], unit column stride */
  const void* hidden;
  int32_t dtype; /* of hidden, weight, bias and grad_hidden: LG_FP32, LG_BF16, LG_FP16 */
  int32_t logits_dtype; /* of a chunk of logits; -1 = LG_FP32 on the CPU, `dtype` on a device; else `dtype` or LG_FP32, of which a device refuses any
                           but `dtype` (LG_UNIMPLEMENTED) */
  int64_t rows, width; /* 0 to 2^40, 1 to 2^40; on a device rows of hidden and of grad_weight lie less than 2^31 bytes apart */
  int64_t hidden_stride; /* elements between rows, at least width; 0 = width. The same holds for the other three */
  /* weight [columns, width], unit column stride. Rows from loss.vocab_size on are padding: not read, gradient 0 */
  const void* weight;
  int64_t columns; /* 1 to 2^40 */
  int64_t weight_stride;
  const void* bias; /* [columns]; NULL = none */
  /* gradients; each may be NULL = not wanted, not computed */
  void* grad_hidden; /* [rows, width], `dtype`; 0 at masked rows. Not hidden itself */
  int64_t grad_hidden_stride;
  void* grad_weight; /* [columns, width], head_grad_dtype; summed over the chunks in fp32 whatever its dtype */
  int64_t grad_weight_stride;
  void* grad_bias; /* [columns], head_grad_dtype; needs bias */
  int32_t head_grad_dtype; /* LG_FP32 (default) or `dtype` */
  int32_t accumulate; /* 1: grad_weight and grad_bias are added to; 0 (default): overwritten */
  /* memory */
  int64_t chunk_rows; /* rows whose logits are held at once; 0 = as memory_budget allows */
  int64_t memory_budget; /* bytes for chunk and workspace together; 0 = a default that keeps the products at full speed; refused if chunk_rows (or
                            one row) does not fit */
  void* workspace; /* on the tensors' device, 256-byte aligned, for this call alone until the stream has passed it; NULL = the library's own, one
                      for each stream of a device, which calls from any thread use one after the other; not for graphs that run at the same time (above) */
  int64_t workspace_bytes; /* of `workspace`; see lg_linear_cross_entropy_plan */
  int64_t most_unmasked_rows; /* what the caller knows without asking the device; -1 = not known: then a device runs every chunk, masked or not, except in a
                                 replayed graph. If more are unmasked, those beyond the first so many get NaN in losses, log_z and grad_hidden, count
                                 in nonfinite_rows, make `loss` NaN, and are missing in grad_weight and grad_bias. The CPU counts for itself */
  int32_t head_grad_signal; /* 1: head_grad_sq_sum is wanted even where it takes one more pass over grad_weight, or two with `accumulate`; default 0.
                               The CPU always has it, a device without it only where it rounds grad_weight at the end */
  int64_t reserved[8]; /* of members to come, so that `loss` keeps its place; 0 */
  /* Targets, options, reduction, loss outputs, upstream gradient, telemetry, stream and threads. Its logits, logits_dtype, rows, columns, row_stride,
   * grad_logits and grad_row_stride are not looked at; vocab_size 0 = columns. */
  lg_cross_entropy_args loss;
} lg_linear_cross_entropy_args;

LG_API void lg_linear_cross_entropy_args_init(lg_linear_cross_entropy_args* args);
/* Loss and the wanted gradients in one go. With loss.reduction LG_NONE, upstream is per token as in lg_cross_entropy. */
LG_API int lg_linear_cross_entropy(const lg_linear_cross_entropy_args* args);
/* Second pass for callers that could not take gradients at the loss: forms the logits again and computes the wanted gradients with loss.upstream, adding
 * nothing to the gauge and writing no loss. */
LG_API int lg_linear_cross_entropy_backward(const lg_linear_cross_entropy_args* args);

typedef struct lg_linear_plan {
  size_t struct_size;
  int64_t chunk_rows, chunks;
  int64_t workspace_bytes; /* all memory that the call takes beyond the tensors of its arguments, the chunk's logits included */
  int64_t logits_bytes; /* of one chunk */
} lg_linear_plan;
/* What a call with these arguments takes, on the device that holds hidden (weight, if that is NULL) or else on the CPU. Computes nothing; no pointer is
 * followed, and those of inputs and workspace may be NULL; of a gradient it says whether it is wanted. */
LG_API int lg_linear_cross_entropy_plan(const lg_linear_cross_entropy_args* args, lg_linear_plan* plan);
/* Optional, once for each shape (and alignment of its pointers) on a device: takes the workspace and times the product algorithms under load, which blocks for
 * some seconds. Without it a call takes cuBLASLt's first choice. Needed before a call is captured into a graph. Nothing of the arguments is written. */
LG_API int lg_linear_cross_entropy_prepare(const lg_linear_cross_entropy_args* args);

/* ---- vocabulary-parallel cross-entropy: each rank of a group holds some columns of the logits ----------------------------- */

/* The loss of lg_cross_entropy over logits whose columns are spread over the ranks of a group, in two calls with one exchange between them:
 *
 *     lg_vocab_parallel_begin(&args, contribution)      reads the rank's columns; writes what the others must know of them
 *     all-gather of the contributions in rank order     the caller's, by any means: NCCL, MPI, torch.distributed, shared memory
 *     lg_vocab_parallel_finish(&args, gathered)         loss, gradient of the rank's own columns, signals
 *
 * Every rank merges the same bytes in the same order: losses, log_z and loss have the same bits on all ranks, and rows that are not ordinary
 * are so on all of them. No memory of [rows, columns] is taken. On the CPU, a group of one gives the bits of lg_cross_entropy.
 *
 * A contribution is opaque: 128 + 64 * rows bytes, aligned to 16, layout in kernels/host/vocab_parallel_contribution.h; all ranks need the same version of it.
 *
 * What finish says when ranks disagree. Nothing that it returns is a plausible wrong loss:
 *  - A contribution that is not provably the sender's answer to this very call (each row is tagged with a hash of payload, step, micro-batch, row and sender):
 *    missing, stale, of another sender, changed on its way. Returns LG_OK; the unmasked rows concerned get loss, log_z and gradient NaN, `loss` is NaN, and the
 *    gauge counts exchange_bad_rows with the sender that has most of them. Those rows are in unmasked_tokens and the fingerprints, and in no other sum.
 *  - Contributions that are proven and cannot belong to one loss: other rows, dtype, vocab_size, group_size, position_base or options of the loss than this rank's,
 *    columns that overlap or leave some of [0, vocab_size) uncovered. Returns LG_FAILED_PRECONDITION on every rank that sees it, naming rank, argument and
 *    both values; no output is written and nothing is counted.
 *  - Rows whose target is another one on another rank, or masked on some ranks only: loss, log_z and gradient NaN on all ranks, in no sum; the fingerprints differ.
 *
 * On a device (tensors, contribution and gathered in its memory, at most 256 ranks, V up to 2^30) the same calls enqueue on loss.stream and never wait. What others
 * have sent is there only when the stream comes to it, so that no code can tell of contributions that cannot belong to one loss: the sender whose header says
 * something else than this rank's counts as not proven, with all its rows, in exchange_bad_rows, and every unmasked row is NaN; of columns that do not cover
 * [0, vocab_size) once, the sender whose columns begin elsewhere than those before them end, or, if they end too early, the last. lg_vocab_parallel_check
 * names them from a copy. In a replayed graph `step` and `micro_batch` are those of the capture: a contribution of the replay before is taken for one of this.
 *
 * Signals are those of the rank's own columns where they add up over the group (probability_mass, target_hits, logit_grad_sq_sum) or are maxima
 * (max_abs_logit, whose column counts in the whole vocabulary), and equal on all ranks elsewhere. */
typedef struct lg_vocab_parallel_args {
  size_t struct_size;
  int32_t group_size; /* ranks that share the vocabulary, 1 to 65536; default 1 */
  int32_t group_index; /* of this rank: its place in the gathered contributions */
  int64_t vocab_size; /* V: real columns over all ranks, >= 1 */
  int64_t shard_offset; /* this rank's first column in the vocabulary; ranks need not be in the order of their columns */
  int64_t shard_columns; /* real columns of this rank: the first of its logits; the rest is padding. 0 = nothing but padding; -1 (default) = loss.columns */
  /* Which exchange this is: the job's own numbers, >= 0, equal on all ranks and in no other call. A contribution of another one is found out by them. (Not the
   * gauge's step: a gauge that is off on one rank must not change a loss.) */
  int64_t step; /* default 0 */
  int64_t micro_batch; /* number of the call in its step; default 0 */
  int64_t gathered_stride; /* bytes from one contribution to the next in `gathered`, a multiple of 16; 0 = lg_vocab_parallel_contribution_bytes of rows */
  int64_t reserved[8]; /* of members to come, so that `loss` keeps its place; 0 */
  /* logits [rows, columns]: this rank's columns, columns >= 1; grad_logits likewise. Targets count in the whole vocabulary and are, like all options,
   * the same on all ranks. vocab_size is not looked at. */
  lg_cross_entropy_args loss;
} lg_vocab_parallel_args;

LG_API void lg_vocab_parallel_args_init(lg_vocab_parallel_args* args);
/* Bytes of a contribution of `rows` rows. */
LG_API int lg_vocab_parallel_contribution_bytes(int64_t rows, int64_t* bytes);
/* Writes this rank's contribution. Outputs, upstream and denominator of args are not used. */
LG_API int lg_vocab_parallel_begin(const lg_vocab_parallel_args* args, void* contribution);
/* `gathered`: group_size contributions. With the arguments of begin; outputs and upstream may be others. For a later upstream call it once more with kept logits
 * and contributions, and without gauge, losses, log_z and loss. */
LG_API int lg_vocab_parallel_finish(const lg_vocab_parallel_args* args, const void* gathered);
/* Optional: what the headers in `gathered`, host memory or a copy of a device's, say of the group. LG_FAILED_PRECONDITION names the first rank that has not
 * answered to this call, or argument, rank and values of contributions that cannot belong to one loss. Rows are not looked at; nothing is written. */
LG_API int lg_vocab_parallel_check(const lg_vocab_parallel_args* args, const void* gathered);

/* begin, NCCL's all-gather and finish in one call on loss.stream; for tensors on a device. `communicator`: an ncclComm_t of group_size ranks in which this one is
 * group_index, on the tensors' device, blocking (NCCL's default), and made by the libnccl.so.2 that the process has loaded. `gathered`: group_size contributions
 * of the caller's device memory, which a later lg_vocab_parallel_finish may use; gathered_stride is 0. May be captured into a graph after one call. Not
 * between ncclGroupStart and ncclGroupEnd: finish would be enqueued before the exchange (and count it). Collectives of other communicators on the same stream
 * are as legal as between any two calls of NCCL. LG_UNAVAILABLE: no NCCL, or it failed, with its words; a communicator that is known to have failed is refused
 * before anything is enqueued. A rank that does not come makes the others' streams wait, as in any collective, until the job ends it by ncclCommAbort or a
 * timeout of its own; the calls themselves return, and what was not exchanged is then found out by finish. NCCL does not check that ranks give as many bytes: of
 * a communicator of lg_communicator_open the first call that is not captured asks all ranks first, for which the host waits, and where rows, options or columns
 * contradict each other every rank gets LG_FAILED_PRECONDITION that names them. */
LG_API int lg_vocab_parallel_cross_entropy(const lg_vocab_parallel_args* args, void* communicator, void* gathered);
/* For jobs without a communicator: one rank makes the 128 bytes of `id` and gives them to all. `open` is for the current device and waits for all ranks. NULL is
 * allowed in `close`. */
LG_API int lg_communicator_unique_id(void* id);
LG_API int lg_communicator_open(const void* id, int32_t group_size, int32_t group_index, void** communicator);
LG_API int lg_communicator_close(void* communicator);

/* ---- vocabulary-parallel linear cross-entropy: each rank of a group holds some rows of the head ---------------------------- */

/* All-gather of the caller's, by any means: `bytes` of `contribution` from every rank to `gathered`, group_size of them in rank order. `contribution` lies
 * in `gathered`, where this rank's goes, so that an all-gather in place will do. Both are aligned to 64 bytes and are memory of the tensors' device; there,
 * the exchange is enqueued on `stream` (a cudaStream_t), or ordered with it by events. Called on the thread of the call, once for each chunk, in the same
 * order on all ranks. Returns 0, or an lg_code that ends the call. */
typedef int (*lg_exchange)(void* context, const void* contribution, void* gathered, int64_t bytes, void* stream);

/* lg_linear_cross_entropy over a head whose rows, the columns of the logits, are spread over the ranks of a group, hidden states the same on all of them.
 * Rows are taken in chunks, masked ones left out; of each chunk the logits of the rank's own columns are formed, what the others must know of them is
 * exchanged (as in lg_vocab_parallel_begin and _finish, with the same proofs), the logits are turned into their gradient in place and multiplied out. No
 * rank ever holds more logits than one chunk of its shard's, nor takes other memory of [rows, columns].
 *
 *   grad_hidden = G W of the rank's own columns: sum it over the group     grad_weight, grad_bias: whole, of the rank's own rows of the head
 *
 * losses, log_z and loss have the same bits on all ranks. Every rank makes as many exchanges as its rows (on a device: most_unmasked_rows) hold chunks, on
 * the CPU at least one, and all of the same size, masked or not: ranks that mask other rows find out (as in lg_vocab_parallel_finish) and do not hang. So
 * `chunk_rows` must be the same on all ranks. 0 is a default made of numbers that are; where a memory_budget decides, ranks with other shards would choose
 * others: with more than one rank the call then wants chunk_rows, the least of what lg_vocab_parallel_linear_plan says on each.
 *
 * What disagrees is found out as in lg_vocab_parallel_finish: contributions that are not proven, or rows with other targets, are NaN and counted. On the
 * CPU ranks that cannot belong to one loss (rows, vocab_size, options, columns that do not cover the vocabulary once) get LG_FAILED_PRECONDITION, each of
 * them, after the first exchange. When a call fails on its way, outputs are undefined but for `loss`, which is not written, and, on the CPU, nothing is
 * counted. Over a communicator of lg_communicator_open the first call asks the ranks as in lg_vocab_parallel_cross_entropy, for chunk_rows too.
 *
 * Signals are those of the vocabulary-parallel loss, and head_grad_sq_sum of the rank's own shard; hidden_grad_sq_sum is absent, unless the group is one
 * rank. A later upstream gradient takes the call once more, with its exchanges: without gauge, losses, log_z and loss, under other `step` or `micro_batch`
 * numbers. */
typedef struct lg_vocab_parallel_linear_args {
  size_t struct_size;
  /* as in lg_vocab_parallel_args */
  int32_t group_size, group_index;
  int64_t vocab_size;
  int64_t shard_offset;
  int64_t shard_columns; /* real rows of the shard's weight, the first of them; -1 (default) = linear->columns */
  int64_t step;
  int64_t micro_batch; /* below 2^40 */
  /* the exchange: one of both. A group of one rank needs none */
  lg_exchange exchange;
  void* exchange_context;
  void* communicator; /* an ncclComm_t as in lg_vocab_parallel_cross_entropy; tensors on a device */
  int32_t reduce_grad_hidden; /* with a communicator: 1 = grad_hidden is summed over the group, chunk by chunk, in its dtype; default 0 */
  /* The rank's part: hidden [rows, width]; weight, bias and their gradients of the shard, columns >= 1. Targets count in the whole vocabulary and are, like
   * all options of the loss, the same on all ranks. loss.vocab_size is not looked at. */
  const lg_linear_cross_entropy_args* linear;
} lg_vocab_parallel_linear_args;

LG_API void lg_vocab_parallel_linear_args_init(lg_vocab_parallel_linear_args* args);
LG_API int lg_vocab_parallel_linear_cross_entropy(const lg_vocab_parallel_linear_args* args);
/* As lg_linear_cross_entropy_plan: chunk_rows, and all memory beyond the tensors, the exchanged contributions included. Exchange and communicator may be NULL. */
LG_API int lg_vocab_parallel_linear_plan(const lg_vocab_parallel_linear_args* args, lg_linear_plan* plan);
/* As lg_linear_cross_entropy_prepare, on each rank for itself: nothing is exchanged. */
LG_API int lg_vocab_parallel_linear_prepare(const lg_vocab_parallel_linear_args* args);

/* ---- labels of packed documents ------------------------------------------------------------------------------------------ */

/* Labels for next-token prediction over documents that lie behind one another: position t is asked for tokens[t + 1], once, so that no loss shall shift
 * again. Masked, and counted for the first of these reasons that holds: the last position of a document, whose next token is another's; what is behind the
 * last document, and positions whose label is `pad`; positions whose label belongs to a prompt (an answer's first token does not).
 *
 * Lengths on the host are checked. Those on a device are not read back: whatever they are, labels are tokens or ignore_index, and nothing outside of the
 * arrays is touched. */
typedef struct lg_pack_labels_args {
  size_t struct_size;
  const void* tokens; /* [count] */
  int32_t token_dtype; /* LG_INT32, LG_INT64 (default) */
  int64_t count; /* >= 0 */
  const void* cu_seqlens; /* [documents + 1]: where documents begin, and the end of the last; 0 first, never falling, at most count */
  int32_t length_dtype; /* of cu_seqlens and prompt_lengths: LG_INT32, LG_INT64 (default) */
  int64_t documents; /* >= 0 */
  const void* prompt_lengths; /* [documents], each 0 or more: tokens that begin the document and are not to be predicted; NULL = no prompts */
  int64_t pad; /* token number that is padding wherever it stands as a label, if has_pad is 1 */
  int32_t has_pad; /* default 0 */
  int64_t ignore_index; /* default -100 */
  int64_t* labels; /* [count] output, not tokens */
  int64_t* counts; /* [4] output: positions masked as the last of a document, as padding, as prompt, and unmasked ones; NULL = not wanted */
  void* stream; /* cudaStream_t; NULL on the CPU */
} lg_pack_labels_args;

LG_API void lg_pack_labels_args_init(lg_pack_labels_args* args);
LG_API int lg_pack_labels(const lg_pack_labels_args* args);

#ifdef __cplusplus
}
#endif

#endif /* LOSSGAUGE_LOSSGAUGE_H_ */
