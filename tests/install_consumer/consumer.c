/* Opens a gauge in the directory given, publishes one step that it observed itself, and closes. */
#include <lossgauge/lossgauge.h>
#include <stdio.h>

int main(int argc, char** argv) {
  lg_gauge_options options;
  lg_observation observation;
  lg_gauge* gauge = NULL;
  if (argc != 2) return 2;
  lg_gauge_options_init(&options);
  options.run = "consumer";
  options.world_size = 1;
  options.rank = 0;
  options.ring_dir = argv[1];
  lg_observation_init(&observation);
  observation.nll_sum = 2.5;
  observation.tokens = 4;
  observation.unmasked_tokens = 4;
  if (lg_gauge_open(&options, &gauge) != LG_OK || lg_gauge_observe(gauge, &observation) != LG_OK ||
      lg_gauge_publish(gauge, NULL) != LG_OK || lg_gauge_close(gauge, "done") != LG_OK) {
    fprintf(stderr, "consumer: %s\n", lg_last_error());
    return 1;
  }
  printf("lossgauge %s works\n", lg_version());
  return 0;
}
