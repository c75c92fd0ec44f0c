#include "tests/kernels/vocab_parallel_calls.h"

#include <cstring>

namespace lossgauge::test {

int CallBegin(const lg_vocab_parallel_args& args, ExchangeMemory& contribution) { return lg_vocab_parallel_begin(&args, contribution.data()); }
int CallFinish(const lg_vocab_parallel_args& args, const ExchangeMemory& gathered) { return lg_vocab_parallel_finish(&args, gathered.data()); }
int CallLinear(const lg_vocab_parallel_linear_args& args) { return lg_vocab_parallel_linear_cross_entropy(&args); }
void CopyFromExchange(void* to, const void* from, std::size_t bytes, void*) { std::memcpy(to, from, bytes); }
void CopyToExchange(void* to, const void* from, std::size_t bytes, void*) { std::memcpy(to, from, bytes); }

}  // namespace lossgauge::test
