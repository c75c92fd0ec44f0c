#include "tests/kernels/vocab_parallel_calls.h"

namespace lossgauge::test {

int CallBegin(const lg_vocab_parallel_args& args, ExchangeMemory& contribution) { return lg_vocab_parallel_begin(&args, contribution.data()); }
int CallFinish(const lg_vocab_parallel_args& args, const ExchangeMemory& gathered) { return lg_vocab_parallel_finish(&args, gathered.data()); }

}  // namespace lossgauge::test
