/* The shared-memory ABI between a training job (producer) and lossgauged (reader). This header is its specification;
 * ring_writer.h and ring_reader.h are its two sides on a host, proto/README.md tells the life of a record.
 *
 * SEGMENT. A rank of a run owns one segment: two ring files and a lock file in one directory,
 *
 *     <key>.steps     ring of step records     (LG_RING_KIND_STEPS,  512 slots of  768 bytes)
 *     <key>.events    ring of event records    (LG_RING_KIND_EVENTS,  64 slots of 1024 bytes)
 *     <key>.lock      empty; the producer holds an fcntl write lock (F_SETLK) on it for as long as it lives
 *
 * where <key> = "<16 hex digits: hash of run>-r<rank>-<32 hex digits: segment id>". The run's name stands in the header only, so any
 * name is legal and none is cut. Each producer makes a new segment, so a reader's cursor, keyed by the segment id, can never be applied
 * to another file's records. Files whose names begin with a dot are the producers' own and no rings.
 *
 * Making one: lock file, created and locked; both files created, their space reserved (posix_fallocate: a full tmpfs is an error
 * now, not a SIGBUS later); identity written; `ready` stored in .events and then in .steps. Who sees a ready .steps file may open the
 * other two. The producer removes dead segments of its own run and rank except the newest; a reader that may write removes those that
 * it has drained. Nobody removes a segment whose lock is held.
 *
 * FILE (both kinds): one header of LG_RING_HEADER_BYTES, then slot_count slots of slot_bytes each.
 *
 *     offset 0     lg_ring_header.identity    written once before `ready`, then never again
 *     offset 3584  lg_ring_header.ready       stored last with release: LG_RING_READY. 0 = not ready yet, look again later
 *     offset 3648  lg_ring_header.cursor      own cache line: number of records published so far (release); see WRITER for GPUs
 *     offset 3712  lg_ring_header.status      own cache lines: heartbeat and status line; see lg_ring_status
 *     offset 4096  slot 0, slot 1, ...
 *
 * All integers are little-endian; everything in a slot is a 64-bit word. Publication n (n = 1, 2, ...) goes to slot
 * (n - 1) % slot_count. Word 0 of a slot is its sequence word: 2n - 1 while publication n is being written, 2n when it is whole; 0 if
 * the slot was never used. The last word is the checksum (lg_ring_checksum) over segment id, sequence word (the even one) and
 * payload words. A 64-bit sequence does not wrap in the life of any job: at a million records a second it lasts 290,000 years.
 *
 * WRITER. One thread, and the only one that stores into slots and cursor:
 *     1  slot.word[0] = 2n - 1                         relaxed
 *     2  slot.word[i] = payload, i = 1 ... last        release each: none can become visible before the odd sequence word
 *     3  slot.word[0] = 2n                             release: publishes the record
 *     4  header.cursor = n                             release: who sees n there, sees slot n whole (or overwritten by a newer one)
 * It never waits for a reader: a full ring overwrites its oldest slot.
 *
 * A GPU writer has no cheap store-release to the host for each word, and a fence costs it a fifth of a publish. It does with one: odd and
 * payload in any order, system-scope fence, even and cursor in any order. Therefore, of its rings:
 *     - The cursor is n - 1 when publication n is whole (its release is the fence of the next one), and may be seen up to
 *       kMostAheadOfCursor (ring_reader.h) behind what is seen of slots. Who ends the segment cleanly stores the exact number before
 *       `closed` and the LG_EVENT_END record. A reader that wants the number earlier looks into the slots after the cursor.
 *     - Payload words of publication n + slot_count may be seen before its odd word, so that a copy of publication n is a mixture though
 *       both looks found 2n. Its checksum, which covers all words, is wrong. It is no damage unless it stays so.
 *
 * READER. For publication n in slot (n - 1) % slot_count:
 *     1  s0 = slot.word[0]                             acquire
 *     2  copy[i] = slot.word[i], i = 1 ... last        acquire each: the look in 3 cannot move before them
 *     3  s1 = slot.word[0]                             relaxed
 * The copy is publication n if and only if s0 == s1 == 2n and its checksum matches.
 *     s0 <  2n      not whole yet. If cursor >= n all the same, the slot was damaged: skip it, count one record lost.
 *     s0 == 2n - 1  being written; if the producer is dead, torn for ever: count it
 *     s0 >  2n      lapped: publications up to (newest begun) - slot_count are gone. Count them, go on at the oldest that is left.
 *     checksum      wrong: skip, count one record lost. But if n + slot_count may have been begun, look again first, a bounded number of
 *                   times, as its odd word may be about to appear: then it is lapped.
 * So each publication is delivered once or counted as lost once, and totals stay right across a gap because each record carries them.
 *
 * TRUST. The reader maps the file read-only, and every byte is untrusted: sizes are checked against the file's size before use, text is
 * cut at its field's end, a record that does not validate is counted and skipped. The checksum guards against torn and mixed-up
 * records, not against a forger.
 *
 * CHANGING THIS FILE. Fields are only appended, into reserved words, or behind the last payload word by raising slot_bytes (the checksum
 * stays the last word); new values of enumerations may be added; LG_RING_ABI_MINOR is raised; and the golden bytes of each released
 * minor stay readable (tests/proto/golden). A reader accepts any minor of its own major: it reads slot_bytes from the header, copies
 * the words it knows, leaves words that an older producer did not write zero, and verifies the checksum over the words that the header
 * announces. Another major is refused, naming both versions. magic, abi_major, abi_minor, byte_order and ready keep their places in every
 * major.
 *
 * Compiles as C11, C++17 and CUDA C++. No function here allocates, prints or fails.
 */
#ifndef LOSSGAUGE_RING_RING_ABI_H_
#define LOSSGAUGE_RING_RING_ABI_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define LG_RING_FN static inline __host__ __device__
#else
#define LG_RING_FN static inline
#endif
#if defined(__cplusplus)
#define LG_RING_ASSERT(condition, text) static_assert(condition, text)
#else
#define LG_RING_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#define LG_RING_MAGIC UINT64_C(0x31474e49524c474c) /* "LGLRING1" read as bytes */
#define LG_RING_ABI_MAJOR 1u
#define LG_RING_ABI_MINOR 0u
#define LG_RING_BYTE_ORDER UINT32_C(0x01020304) /* reads as 0x04030201 on a machine of the other order */
#define LG_RING_READY UINT64_C(0x59444145525f474c)

#define LG_RING_HEADER_BYTES 4096u
#define LG_STEP_SLOT_BYTES 768u
#define LG_STEP_SLOT_COUNT 512u
#define LG_EVENT_SLOT_BYTES 1024u
#define LG_EVENT_SLOT_COUNT 64u
#define LG_MAX_HEADER_BYTES 65536u
#define LG_MAX_SLOT_BYTES 4096u
#define LG_MAX_SLOT_COUNT 65536u

#define LG_RUN_NAME_BYTES 256u
#define LG_ATTEMPT_BYTES 128u
#define LG_BLOCK_COUNT 8u
#define LG_BLOCK_NAME_BYTES 32u

enum { LG_RING_KIND_STEPS = 1, LG_RING_KIND_EVENTS = 2 };
enum { LG_GRADIENT_REDUCTION_UNKNOWN = 0, LG_GRADIENT_REDUCTION_SUM = 1, LG_GRADIENT_REDUCTION_MEAN = 2 };

/* Signed fixed point, step 2^-64: value = hi + lo / 2^64. Two's complement over both words. Sums are exact and order-free. */
typedef struct lg_fixed128 {
  uint64_t lo;
  int64_t hi;
} lg_fixed128;

/* One parallel axis of the job's layout: `size` ranks, this one being number `index`. size 1, index 0 = not used. */
typedef struct lg_axis {
  uint32_t size;
  uint32_t index;
} lg_axis;

/* Where a rank stands in its job. */
typedef struct lg_layout {
  uint32_t world_size;
  uint32_t rank;
  lg_axis dp; /* data parallel */
  lg_axis tp; /* tensor parallel: shards of the vocabulary */
  lg_axis pp; /* pipeline */
  lg_axis cp; /* context (sequence) parallel */
  lg_axis ep; /* expert parallel */
  uint32_t has_loss; /* 0 for pipeline stages without a head: such a rank publishes no loss */
  uint32_t gradient_reduction; /* LG_GRADIENT_REDUCTION_*, over data-parallel ranks */
  int64_t shard_offset; /* first vocabulary column of this rank */
  int64_t shard_columns; /* number of real columns of this rank */
  int64_t vocab_size; /* V: real columns over all shards; 0 = unknown (a job that only observes) */
} lg_layout;

typedef struct lg_ring_identity {
  uint64_t magic; /* LG_RING_MAGIC */
  uint32_t abi_major;
  uint32_t abi_minor;
  uint32_t byte_order; /* LG_RING_BYTE_ORDER */
  uint32_t kind; /* LG_RING_KIND_* */
  uint32_t header_bytes;
  uint32_t slot_bytes;
  uint32_t slot_count;
  uint32_t record_words; /* words of a slot, sequence and checksum included; slot_bytes / 8 */
  uint64_t segment_id[2]; /* random; the reader's cursor is keyed by it */
  uint64_t boot_id[2]; /* of the producer's kernel: CLOCK_BOOTTIME values compare only within one boot */
  int64_t created_boot_ns; /* CLOCK_BOOTTIME */
  int64_t created_wall_ns; /* CLOCK_REALTIME, for people */
  int64_t attempt_start_wall_ns; /* of rank 0 where known, else this rank's: attempts are ordered by it */
  uint32_t producer_pid; /* in the producer's namespace, for people; never used to decide liveness: the lock is */
  uint32_t producer_uid;
  lg_layout layout;
  double label_smoothing; /* declared, epsilon in [0, 1) */
  double z_loss_weight; /* declared, lambda >= 0 */
  char run[LG_RUN_NAME_BYTES]; /* UTF-8, NUL-terminated, not validated by the producer */
  char attempt[LG_ATTEMPT_BYTES];
  char block_names[LG_BLOCK_COUNT][LG_BLOCK_NAME_BYTES]; /* "train", "eval", ...; empty = unused */
} lg_ring_identity;

/* What the producer last did, for locating a hang: host stuck (last_call old, beat fresh), device or collective stuck (published_step
 * behind enqueued_step), frozen (lock held, beat stale), or a rank that never entered a step its peers are in. Each word is stored on its
 * own (relaxed but for heartbeat_boot_ns: release), so two of them may be of different moments. It counts in the steps ring; in the
 * events ring only heartbeat_boot_ns and closed are kept up. */
typedef struct lg_ring_status {
  int64_t heartbeat_boot_ns; /* CLOCK_BOOTTIME of the last beat of the producer's own thread; one a second */
  int64_t enqueued_step; /* last step handed to publish by the host; -1 = none */
  int64_t published_step; /* last step whose record is whole; -1 = none. Behind enqueued_step = the device is stuck */
  int64_t entered_step; /* last step whose first loss call was made; -1 = none */
  uint64_t last_call; /* LG_CALL_* */
  int64_t last_call_boot_ns;
  uint64_t phase; /* LG_PHASE_* */
  int64_t phase_since_boot_ns;
  uint64_t closed; /* LG_CLOSE_*: 0 while open; stored (release) after the LG_EVENT_END record */
} lg_ring_status;

typedef struct lg_ring_header {
  lg_ring_identity identity;
  uint8_t reserved_identity[3584 - sizeof(lg_ring_identity)];
  uint64_t ready;
  uint8_t reserved_ready[56];
  uint64_t cursor;
  uint8_t reserved_cursor[56];
  lg_ring_status status;
  uint8_t reserved_status[384 - sizeof(lg_ring_status)];
} lg_ring_header;

enum { LG_CALL_NONE = 0, LG_CALL_OPEN = 1, LG_CALL_LOSS = 2, LG_CALL_PUBLISH = 3, LG_CALL_EVENT = 4, LG_CALL_CLOSE = 5, LG_CALL_OBSERVE = 6 };
enum { LG_PHASE_TRAIN = 0, LG_PHASE_WARM_UP = 1, LG_PHASE_EVALUATION = 2, LG_PHASE_CHECKPOINT = 3, LG_PHASE_DATA_LOADING = 4, LG_PHASE_OTHER = 5 };
enum { LG_CLOSE_OPEN = 0, LG_CLOSE_FINISHED = 1, LG_CLOSE_FAILED = 2 };

/* Which optional words of a step record carry a value. A word whose bit is off is 0 and means "absent", never "zero". */
enum {
  LG_HAS_LOSS = 1 << 0, /* nll_sum, unmasked_tokens, finite_tokens */
  LG_HAS_LOGITS = 1 << 1, /* everything that needs the logits: log Z, max_abs_logit, hits, fingerprints, places */
  LG_HAS_OBJECTIVE = 1 << 2, /* objective_sum, z_loss_sum */
  LG_HAS_DENOMINATOR = 1 << 3,
  LG_HAS_LOGIT_GRAD = 1 << 4, /* logit_grad_sq_sum, nonfinite_grad_rows */
  LG_HAS_MASS = 1 << 5, /* probability_mass, mass_error_rows */
  LG_HAS_HIDDEN_GRAD = 1 << 6,
  LG_HAS_HEAD_GRAD = 1 << 7,
  LG_HAS_GRAD_NORM = 1 << 8,
  LG_HAS_REPORTED_LOSS = 1 << 9,
  LG_HAS_LEARNING_RATE = 1 << 10,
  LG_HAS_TARGET_BYTES = 1 << 11, /* target_bytes, scored_nll_sum */
  LG_HAS_WORST_ROW = 1 << 12,
  LG_HAS_WORST_LOGIT = 1 << 13,
  LG_HAS_FIRST_NONFINITE_ROW = 1 << 14,
  LG_HAS_EXCHANGE = 1 << 15
};

enum { LG_DTYPE_FP32 = 0, LG_DTYPE_BF16 = 1, LG_DTYPE_FP16 = 2, LG_DTYPE_FP64 = 3 };

/* A step record. Terms are those of README's glossary; sums are over this rank's positions of the step. One step may leave several
 * records, one for each block that was added to; block 0 always has one. Everything between `sequence` and `checksum` is payload. */
typedef struct lg_step_record {
  uint64_t sequence; /*   0 */
  uint64_t present; /*   1  LG_HAS_* */
  int64_t step; /*   2 */
  uint64_t block; /*   3  index into block_names; 0 = train */
  uint64_t phase; /*   4  LG_PHASE_* at publish */
  int64_t boot_ns; /*   5  CLOCK_BOOTTIME at publish; 0 from a GPU writer */
  int64_t wall_ns; /*   6  CLOCK_REALTIME or the device's global timer, for people */
  uint64_t micro_batches; /*   7  launches that added to the step */
  uint64_t tokens; /*   8 */
  uint64_t unmasked_tokens; /*   9 */
  uint64_t finite_tokens; /*  10 */
  uint64_t nonfinite_rows; /*  11 */
  uint64_t bad_targets; /*  12 */
  uint64_t clamped_rows; /*  13  rows whose terms were clamped before summing */
  lg_fixed128 nll_sum; /*  14 */
  lg_fixed128 objective_sum; /*  16 */
  lg_fixed128 z_loss_sum; /*  18 */
  lg_fixed128 scored_nll_sum; /*  20 */
  uint64_t target_bytes; /*  22 */
  double denominator_min; /*  23 */
  double denominator_max; /*  24 */
  lg_fixed128 log_z_sum; /*  25 */
  lg_fixed128 log_z_sq_sum; /*  27 */
  double log_z_max; /*  29 */
  double max_abs_logit; /*  30 */
  lg_fixed128 logit_grad_sq_sum; /*  31  sum of (g * denominator)^2; divide by denominator^2 */
  uint64_t nonfinite_grad_rows; /*  33 */
  lg_fixed128 hidden_grad_sq_sum; /*  34 */
  lg_fixed128 head_grad_sq_sum; /*  36 */
  double grad_norm; /*  38  the job's own, global */
  lg_fixed128 probability_mass; /*  39 */
  uint64_t mass_error_rows; /*  41 */
  uint64_t target_hits; /*  42 */
  uint64_t correct_tokens; /*  43 */
  uint64_t mask_fingerprint; /*  44 */
  uint64_t target_fingerprint; /*  45 */
  double worst_row_nll; /*  46 */
  int64_t worst_row_position; /*  47 */
  int64_t worst_row_target; /*  48 */
  int64_t worst_logit_position; /*  49  of max_abs_logit */
  int64_t worst_logit_column; /*  50 */
  int64_t first_nonfinite_row; /*  51  position */
  double reported_loss; /*  52 */
  double reported_loss_auxiliary; /*  53  declared auxiliary terms contained in it, nats per token */
  uint64_t reported_loss_dtype; /*  54  LG_DTYPE_* */
  uint64_t reported_loss_interval; /*  55  number of steps it averages over, ending here; 1 = this step */
  double learning_rate; /*  56 */
  uint64_t exchange_bad_rows; /*  57 */
  uint64_t exchange_bad_sender; /*  58  index in the tensor-parallel group with the most bad rows */
  /* Totals of this block since the segment was made, this record included: right across gaps. */
  uint64_t total_steps; /*  59 */
  uint64_t total_tokens; /*  60 */
  uint64_t total_unmasked_tokens; /*  61 */
  uint64_t total_finite_tokens; /*  62 */
  uint64_t total_nonfinite_rows; /*  63 */
  uint64_t total_bad_targets; /*  64 */
  uint64_t total_target_bytes; /*  65 */
  uint64_t total_nonfinite_grad_rows; /*  66 */
  lg_fixed128 total_nll_sum; /*  67 */
  lg_fixed128 total_scored_nll_sum; /*  69 */
  lg_fixed128 total_z_loss_sum; /*  71 */
  uint64_t total_correct_tokens; /*  73 */
  uint64_t total_clamped_rows; /*  74 */
  uint64_t total_mass_error_rows; /*  75 */
  uint64_t total_nonfinite_steps; /*  76  steps with a non-finite row, gradient row or handed-over scalar */
  uint64_t reserved[18]; /*  77 */
  uint64_t checksum; /*  95 */
} lg_step_record;

enum {
  LG_EVENT_RESUME = 1, /* step: the job goes on after this one; text: checkpoint path, may be empty */
  LG_EVENT_CHECKPOINT = 2, /* step, text: path */
  LG_EVENT_PHASE_BEGIN = 3, /* phase */
  LG_EVENT_PHASE_END = 4, /* phase */
  LG_EVENT_EVALUATION = 5, /* step, value: loss in nats per token, count: tokens */
  LG_EVENT_END = 6, /* count: LG_CLOSE_*; text: reason */
  LG_EVENT_NOTE = 7 /* step, text: free, shown with the run */
};

#define LG_EVENT_TEXT_BYTES 936u

typedef struct lg_event_record {
  uint64_t sequence; /*   0 */
  uint64_t kind; /*   1  LG_EVENT_* */
  int64_t step; /*   2  -1 = none */
  int64_t boot_ns; /*   3 */
  int64_t wall_ns; /*   4 */
  uint64_t phase; /*   5  LG_PHASE_* */
  double value; /*   6 */
  uint64_t count; /*   7 */
  uint64_t text_bytes; /*   8  length of the text as given; larger than LG_EVENT_TEXT_BYTES = cut */
  char text[LG_EVENT_TEXT_BYTES]; /*   9  zero-padded */
  uint64_t reserved; /* 126 */
  uint64_t checksum; /* 127 */
} lg_event_record;

/* The layout, field by field: bytes for structures of the header, words of 8 bytes for records. A change that moves a field stops here. */
#define LG_RING_FIELD(type, field, bytes) LG_RING_ASSERT(offsetof(type, field) == (bytes), "offset of " #type "." #field)
#define LG_RING_WORD(type, field, words) LG_RING_ASSERT(offsetof(type, field) == 8 * (words), "offset of " #type "." #field)

LG_RING_FIELD(lg_axis, size, 0);
LG_RING_FIELD(lg_axis, index, 4);
LG_RING_ASSERT(sizeof(lg_axis) == 8, "size of lg_axis");

LG_RING_FIELD(lg_layout, world_size, 0);
LG_RING_FIELD(lg_layout, rank, 4);
LG_RING_FIELD(lg_layout, dp, 8);
LG_RING_FIELD(lg_layout, tp, 16);
LG_RING_FIELD(lg_layout, pp, 24);
LG_RING_FIELD(lg_layout, cp, 32);
LG_RING_FIELD(lg_layout, ep, 40);
LG_RING_FIELD(lg_layout, has_loss, 48);
LG_RING_FIELD(lg_layout, gradient_reduction, 52);
LG_RING_FIELD(lg_layout, shard_offset, 56);
LG_RING_FIELD(lg_layout, shard_columns, 64);
LG_RING_FIELD(lg_layout, vocab_size, 72);
LG_RING_ASSERT(sizeof(lg_layout) == 80, "size of lg_layout");

LG_RING_FIELD(lg_fixed128, lo, 0);
LG_RING_FIELD(lg_fixed128, hi, 8);
LG_RING_ASSERT(sizeof(lg_fixed128) == 16, "size of lg_fixed128");

LG_RING_FIELD(lg_ring_identity, magic, 0);
LG_RING_FIELD(lg_ring_identity, abi_major, 8);
LG_RING_FIELD(lg_ring_identity, abi_minor, 12);
LG_RING_FIELD(lg_ring_identity, byte_order, 16);
LG_RING_FIELD(lg_ring_identity, kind, 20);
LG_RING_FIELD(lg_ring_identity, header_bytes, 24);
LG_RING_FIELD(lg_ring_identity, slot_bytes, 28);
LG_RING_FIELD(lg_ring_identity, slot_count, 32);
LG_RING_FIELD(lg_ring_identity, record_words, 36);
LG_RING_FIELD(lg_ring_identity, segment_id, 40);
LG_RING_FIELD(lg_ring_identity, boot_id, 56);
LG_RING_FIELD(lg_ring_identity, created_boot_ns, 72);
LG_RING_FIELD(lg_ring_identity, created_wall_ns, 80);
LG_RING_FIELD(lg_ring_identity, attempt_start_wall_ns, 88);
LG_RING_FIELD(lg_ring_identity, producer_pid, 96);
LG_RING_FIELD(lg_ring_identity, producer_uid, 100);
LG_RING_FIELD(lg_ring_identity, layout, 104);
LG_RING_FIELD(lg_ring_identity, label_smoothing, 184);
LG_RING_FIELD(lg_ring_identity, z_loss_weight, 192);
LG_RING_FIELD(lg_ring_identity, run, 200);
LG_RING_FIELD(lg_ring_identity, attempt, 456);
LG_RING_FIELD(lg_ring_identity, block_names, 584);
LG_RING_ASSERT(sizeof(lg_ring_identity) == 840, "size of lg_ring_identity");

LG_RING_FIELD(lg_ring_status, heartbeat_boot_ns, 0);
LG_RING_FIELD(lg_ring_status, enqueued_step, 8);
LG_RING_FIELD(lg_ring_status, published_step, 16);
LG_RING_FIELD(lg_ring_status, entered_step, 24);
LG_RING_FIELD(lg_ring_status, last_call, 32);
LG_RING_FIELD(lg_ring_status, last_call_boot_ns, 40);
LG_RING_FIELD(lg_ring_status, phase, 48);
LG_RING_FIELD(lg_ring_status, phase_since_boot_ns, 56);
LG_RING_FIELD(lg_ring_status, closed, 64);
LG_RING_ASSERT(sizeof(lg_ring_status) == 72, "size of lg_ring_status");

LG_RING_FIELD(lg_ring_header, identity, 0);
LG_RING_FIELD(lg_ring_header, reserved_identity, 840);
LG_RING_FIELD(lg_ring_header, ready, 3584);
LG_RING_FIELD(lg_ring_header, reserved_ready, 3592);
LG_RING_FIELD(lg_ring_header, cursor, 3648);
LG_RING_FIELD(lg_ring_header, reserved_cursor, 3656);
LG_RING_FIELD(lg_ring_header, status, 3712);
LG_RING_FIELD(lg_ring_header, reserved_status, 3784);
LG_RING_ASSERT(sizeof(lg_ring_header) == LG_RING_HEADER_BYTES, "the header is one page");

LG_RING_WORD(lg_step_record, sequence, 0);
LG_RING_WORD(lg_step_record, present, 1);
LG_RING_WORD(lg_step_record, step, 2);
LG_RING_WORD(lg_step_record, block, 3);
LG_RING_WORD(lg_step_record, phase, 4);
LG_RING_WORD(lg_step_record, boot_ns, 5);
LG_RING_WORD(lg_step_record, wall_ns, 6);
LG_RING_WORD(lg_step_record, micro_batches, 7);
LG_RING_WORD(lg_step_record, tokens, 8);
LG_RING_WORD(lg_step_record, unmasked_tokens, 9);
LG_RING_WORD(lg_step_record, finite_tokens, 10);
LG_RING_WORD(lg_step_record, nonfinite_rows, 11);
LG_RING_WORD(lg_step_record, bad_targets, 12);
LG_RING_WORD(lg_step_record, clamped_rows, 13);
LG_RING_WORD(lg_step_record, nll_sum, 14);
LG_RING_WORD(lg_step_record, objective_sum, 16);
LG_RING_WORD(lg_step_record, z_loss_sum, 18);
LG_RING_WORD(lg_step_record, scored_nll_sum, 20);
LG_RING_WORD(lg_step_record, target_bytes, 22);
LG_RING_WORD(lg_step_record, denominator_min, 23);
LG_RING_WORD(lg_step_record, denominator_max, 24);
LG_RING_WORD(lg_step_record, log_z_sum, 25);
LG_RING_WORD(lg_step_record, log_z_sq_sum, 27);
LG_RING_WORD(lg_step_record, log_z_max, 29);
LG_RING_WORD(lg_step_record, max_abs_logit, 30);
LG_RING_WORD(lg_step_record, logit_grad_sq_sum, 31);
LG_RING_WORD(lg_step_record, nonfinite_grad_rows, 33);
LG_RING_WORD(lg_step_record, hidden_grad_sq_sum, 34);
LG_RING_WORD(lg_step_record, head_grad_sq_sum, 36);
LG_RING_WORD(lg_step_record, grad_norm, 38);
LG_RING_WORD(lg_step_record, probability_mass, 39);
LG_RING_WORD(lg_step_record, mass_error_rows, 41);
LG_RING_WORD(lg_step_record, target_hits, 42);
LG_RING_WORD(lg_step_record, correct_tokens, 43);
LG_RING_WORD(lg_step_record, mask_fingerprint, 44);
LG_RING_WORD(lg_step_record, target_fingerprint, 45);
LG_RING_WORD(lg_step_record, worst_row_nll, 46);
LG_RING_WORD(lg_step_record, worst_row_position, 47);
LG_RING_WORD(lg_step_record, worst_row_target, 48);
LG_RING_WORD(lg_step_record, worst_logit_position, 49);
LG_RING_WORD(lg_step_record, worst_logit_column, 50);
LG_RING_WORD(lg_step_record, first_nonfinite_row, 51);
LG_RING_WORD(lg_step_record, reported_loss, 52);
LG_RING_WORD(lg_step_record, reported_loss_auxiliary, 53);
LG_RING_WORD(lg_step_record, reported_loss_dtype, 54);
LG_RING_WORD(lg_step_record, reported_loss_interval, 55);
LG_RING_WORD(lg_step_record, learning_rate, 56);
LG_RING_WORD(lg_step_record, exchange_bad_rows, 57);
LG_RING_WORD(lg_step_record, exchange_bad_sender, 58);
LG_RING_WORD(lg_step_record, total_steps, 59);
LG_RING_WORD(lg_step_record, total_tokens, 60);
LG_RING_WORD(lg_step_record, total_unmasked_tokens, 61);
LG_RING_WORD(lg_step_record, total_finite_tokens, 62);
LG_RING_WORD(lg_step_record, total_nonfinite_rows, 63);
LG_RING_WORD(lg_step_record, total_bad_targets, 64);
LG_RING_WORD(lg_step_record, total_target_bytes, 65);
LG_RING_WORD(lg_step_record, total_nonfinite_grad_rows, 66);
LG_RING_WORD(lg_step_record, total_nll_sum, 67);
LG_RING_WORD(lg_step_record, total_scored_nll_sum, 69);
LG_RING_WORD(lg_step_record, total_z_loss_sum, 71);
LG_RING_WORD(lg_step_record, total_correct_tokens, 73);
LG_RING_WORD(lg_step_record, total_clamped_rows, 74);
LG_RING_WORD(lg_step_record, total_mass_error_rows, 75);
LG_RING_WORD(lg_step_record, total_nonfinite_steps, 76);
LG_RING_WORD(lg_step_record, reserved, 77);
LG_RING_WORD(lg_step_record, checksum, 95);
LG_RING_ASSERT(sizeof(lg_step_record) == LG_STEP_SLOT_BYTES, "a step record fills its slot");

LG_RING_WORD(lg_event_record, sequence, 0);
LG_RING_WORD(lg_event_record, kind, 1);
LG_RING_WORD(lg_event_record, step, 2);
LG_RING_WORD(lg_event_record, boot_ns, 3);
LG_RING_WORD(lg_event_record, wall_ns, 4);
LG_RING_WORD(lg_event_record, phase, 5);
LG_RING_WORD(lg_event_record, value, 6);
LG_RING_WORD(lg_event_record, count, 7);
LG_RING_WORD(lg_event_record, text_bytes, 8);
LG_RING_WORD(lg_event_record, text, 9);
LG_RING_WORD(lg_event_record, reserved, 126);
LG_RING_WORD(lg_event_record, checksum, 127);
LG_RING_ASSERT(sizeof(lg_event_record) == LG_EVENT_SLOT_BYTES, "an event record fills its slot");

#undef LG_RING_FIELD
#undef LG_RING_WORD

LG_RING_ASSERT(LG_RING_HEADER_BYTES + LG_STEP_SLOT_BYTES * LG_STEP_SLOT_COUNT + LG_RING_HEADER_BYTES +
                       LG_EVENT_SLOT_BYTES * LG_EVENT_SLOT_COUNT <= 512u * 1024u,
               "both rings of a rank stay within 512 KiB");

/* Finaliser of splitmix64: every input bit reaches every output bit. */
LG_RING_FN uint64_t lg_ring_mix(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* One word's share of a record's checksum. Shares are summed mod 2^64, so a warp can form them in any order. */
LG_RING_FN uint64_t lg_ring_checksum_share(uint64_t word, uint64_t index) {
  return lg_ring_mix(word + UINT64_C(0x9e3779b97f4a7c15) * (index + 1));
}

/* Checksum of a record of `words` words (sequence word first, checksum word last and not included) in a segment. */
LG_RING_FN uint64_t lg_ring_checksum(const uint64_t segment_id[2], const uint64_t* record, uint64_t words) {
  uint64_t sum = lg_ring_checksum_share(segment_id[0], words) + lg_ring_checksum_share(segment_id[1], words + 1);
  for (uint64_t i = 0; i + 1 < words; ++i) sum += lg_ring_checksum_share(record[i], i);
  return sum;
}

#endif /* LOSSGAUGE_RING_RING_ABI_H_ */
