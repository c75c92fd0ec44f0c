/* The C ABI from C11, linked to liblossgauge.so as a job links it. Exits with the number of failed checks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lossgauge/lossgauge.h"

static int failures = 0;

static void check(int holds, const char* text, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, line, text, lg_last_error());
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

static void null_arguments_are_refused(void) {
  lg_gauge* gauge = NULL;
  lg_gauge_options options;
  lg_gauge_state state = {.struct_size = sizeof state};
  lg_observation observation;
  lg_reported_loss reported;
  lg_gauge_options_init(NULL);
  lg_observation_init(NULL);
  lg_reported_loss_init(NULL);
  lg_gauge_options_init(&options);
  lg_observation_init(&observation);
  lg_reported_loss_init(&reported);
  CHECK(lg_gauge_open(NULL, &gauge) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_open(&options, NULL) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_close(NULL, NULL) == LG_OK);
  CHECK(lg_gauge_abandon(NULL, NULL) == LG_OK);
  CHECK(lg_gauge_get_state(NULL, &state) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_phase_begin(NULL, LG_EVALUATION) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_phase_end(NULL, LG_EVALUATION) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_checkpoint_saved(NULL, 1, "x") == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_resume(NULL, 1, NULL) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_evaluation(NULL, 1, 1.0, 1) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_note(NULL, 1, "x") == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_set_scalar(NULL, LG_GRAD_NORM, 1.0) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_set_scalar_pointer(NULL, LG_GRAD_NORM, &observation, LG_FP32) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_set_reported_loss(NULL, &reported) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_observe(NULL, &observation) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_publish(NULL, NULL) == LG_INVALID_ARGUMENT);
  CHECK(lg_gauge_set_step(NULL, 1) == LG_INVALID_ARGUMENT);
  CHECK(strstr(lg_last_error(), "gauge") != NULL);
}

static void structures_of_any_size_are_understood(lg_gauge* gauge) {
  /* A caller that is newer than the library: more fields, which we do not know. */
  struct {
    lg_gauge_state known;
    char later_field[64];
  } state;
  lg_observation observation;
  memset(&state, 0x55, sizeof state);
  state.known.struct_size = sizeof state;
  CHECK(lg_gauge_get_state(gauge, &state.known) == LG_OK);
  CHECK(state.known.telemetry_on == 1);
  CHECK(state.later_field[0] == 0x55);
  /* One that is older: it is given what it knows. */
  memset(&state, 0x55, sizeof state);
  state.known.struct_size = offsetof(lg_gauge_state, message);
  CHECK(lg_gauge_get_state(gauge, &state.known) == LG_OK);
  CHECK(state.known.message[0] == 0x55);
  memset(&observation, 0, sizeof observation);
  CHECK(lg_gauge_observe(gauge, &observation) == LG_INVALID_ARGUMENT);
  CHECK(strstr(lg_last_error(), "struct_size") != NULL);
}

static void head_and_loss_are_one_call(void) {
  const float hidden[2] = {1, 0}, weight[4] = {2, 0, -1, 0}; /* logits 2 and -1 */
  const int64_t target = 0;
  float loss = 0, grad_hidden[2], grad_weight[4];
  lg_linear_plan plan = {.struct_size = sizeof plan};
  lg_linear_cross_entropy_args args;
  lg_linear_cross_entropy_args_init(&args);
  CHECK(args.struct_size == sizeof args && args.loss.struct_size == sizeof args.loss);
  args.hidden = hidden;
  args.rows = 1;
  args.width = 2;
  args.weight = weight;
  args.columns = 2;
  args.grad_hidden = grad_hidden;
  args.grad_weight = grad_weight;
  args.loss.targets = &target;
  args.loss.loss = &loss;
  CHECK(lg_linear_cross_entropy_plan(&args, &plan) == LG_OK && plan.chunk_rows == 1);
  CHECK(lg_linear_cross_entropy_prepare(&args) == LG_OK);
  CHECK(lg_linear_cross_entropy(&args) == LG_OK);
  CHECK(loss > 0.04858f && loss < 0.04859f); /* ln(1 + e^-3) */
  CHECK(grad_weight[0] < -0.0474f && grad_weight[1] == 0);
  CHECK(lg_linear_cross_entropy_backward(&args) == LG_OK);
  CHECK(lg_linear_cross_entropy(NULL) == LG_INVALID_ARGUMENT);
  CHECK(lg_linear_cross_entropy_plan(&args, NULL) == LG_INVALID_ARGUMENT);
}

/* Of a group of two: the other rank says in the exchange what it has kept for this one. */
struct other_rank {
  const void* kept;
  int calls;
};
static int exchange_with(void* context, const void* contribution, void* gathered, int64_t bytes, void* stream) {
  struct other_rank* other = context;
  (void)stream;
  ++other->calls;
  if (other->kept == NULL) return contribution == (const unsigned char*)gathered + bytes ? LG_UNAVAILABLE : LG_INTERNAL;
  return LG_OK;
}

static void a_head_is_shared_by_exchanges(void) {
  const float hidden[2] = {1, 0.5f}, weight[4] = {1, 2, -1, 0.25f};
  const int64_t target = 1;
  float whole = 0, loss = 0;
  struct other_rank other = {NULL, 0};
  lg_linear_plan plan;
  lg_linear_cross_entropy_args linear;
  lg_vocab_parallel_linear_args args;
  lg_linear_cross_entropy_args_init(&linear);
  linear.hidden = hidden;
  linear.weight = weight;
  linear.rows = 1;
  linear.width = linear.columns = 2;
  linear.loss.targets = &target;
  linear.loss.loss = &whole;
  CHECK(lg_linear_cross_entropy(&linear) == LG_OK);
  linear.loss.loss = &loss;
  lg_vocab_parallel_linear_args_init(&args);
  CHECK(args.struct_size == sizeof args && args.shard_columns == -1);
  args.vocab_size = 2;
  args.linear = &linear;
  CHECK(lg_vocab_parallel_linear_cross_entropy(&args) == LG_OK && loss == whole && whole > 0);
  memset(&plan, 0, sizeof plan);
  plan.struct_size = sizeof plan;
  CHECK(lg_vocab_parallel_linear_plan(&args, &plan) == LG_OK && plan.chunk_rows == 1 && plan.chunks == 1);
  CHECK(lg_vocab_parallel_linear_prepare(&args) == LG_OK);
  args.group_size = 2;
  args.group_index = 1;
  args.exchange = exchange_with;
  args.exchange_context = &other;
  loss = -1;
  CHECK(lg_vocab_parallel_linear_cross_entropy(&args) == LG_UNAVAILABLE);
  CHECK(other.calls == 1 && loss == -1);
  CHECK(strstr(lg_last_error(), "exchange: of chunk 0") != NULL);
  CHECK(lg_vocab_parallel_linear_plan(&args, NULL) == LG_INVALID_ARGUMENT);
}

static void a_group_of_two_shares_the_vocabulary(void) {
  const float shards[2] = {2, -1};
  const int64_t target = 0;
  _Alignas(16) unsigned char gathered[2 * 192];
  float loss = 0, gradient = 0;
  int64_t bytes = 0;
  int rank;
  lg_vocab_parallel_args args;
  lg_vocab_parallel_args_init(&args);
  CHECK(args.struct_size == sizeof args && args.loss.struct_size == sizeof args.loss);
  CHECK(lg_vocab_parallel_contribution_bytes(1, &bytes) == LG_OK && bytes == 192);
  args.group_size = 2;
  args.vocab_size = 2;
  args.loss.rows = 1;
  args.loss.columns = 1;
  args.loss.targets = &target;
  for (rank = 1; rank >= 0; --rank) {
    args.group_index = rank;
    args.shard_offset = rank;
    args.loss.logits = shards + rank;
    CHECK(lg_vocab_parallel_begin(&args, gathered + rank * bytes) == LG_OK);
  }
  args.loss.loss = &loss;
  args.loss.grad_logits = &gradient;
  CHECK(lg_vocab_parallel_finish(&args, gathered) == LG_OK);
  CHECK(loss > 0.04858f && loss < 0.04859f); /* ln(1 + e^-3) */
  CHECK(gradient < -0.0474f);
  CHECK(lg_vocab_parallel_begin(NULL, gathered) == LG_INVALID_ARGUMENT);
  CHECK(lg_vocab_parallel_finish(&args, NULL) == LG_INVALID_ARGUMENT);
}

int main(void) {
  lg_gauge_options options;
  lg_gauge* gauge = NULL;
  lg_gauge_state state = {.struct_size = sizeof state};
  char directory[] = "/tmp/lossgauge-c-abi-XXXXXX";
  char command[128];
  int step;

  CHECK(strcmp(lg_last_error(), "") == 0);
  CHECK(strlen(lg_version()) >= 5);
  null_arguments_are_refused();

  CHECK(mkdtemp(directory) != NULL);
  lg_gauge_options_init(&options);
  CHECK(options.struct_size == sizeof options);
  CHECK(options.rank == -1);
  CHECK(options.tp.size == 1);
  options.run = "c";
  options.attempt = "1";
  options.world_size = 1;
  options.rank = 0;
  options.ring_dir = directory;
  CHECK(lg_gauge_open(&options, &gauge) == LG_OK);
  structures_of_any_size_are_understood(gauge);
  head_and_loss_are_one_call();
  a_group_of_two_shares_the_vocabulary();
  a_head_is_shared_by_exchanges();
  for (step = 0; step < 3; ++step) {
    lg_observation observation;
    lg_observation_init(&observation);
    observation.nll_sum = 1.5;
    observation.tokens = 4;
    observation.unmasked_tokens = 3;
    CHECK(lg_gauge_observe(gauge, &observation) == LG_OK);
    CHECK(lg_gauge_set_scalar(gauge, LG_GRAD_NORM, 0.5) == LG_OK);
    CHECK(lg_gauge_publish(gauge, NULL) == LG_OK);
  }
  CHECK(lg_gauge_get_state(gauge, &state) == LG_OK);
  CHECK(state.published == 3);
  CHECK(state.next_step == 3);
  CHECK(lg_gauge_close(gauge, "done") == LG_OK);

  snprintf(command, sizeof command, "rm -rf %s", directory);
  CHECK(system(command) == 0);
  return failures;
}
