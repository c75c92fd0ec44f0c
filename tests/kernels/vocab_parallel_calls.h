// The two calls of a rank whose tensors are in the test's memory: on the CPU, or on copies of them on a device.
#ifndef LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_CALLS_H_
#define LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_CALLS_H_

#include <cstddef>

#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/vocab_parallel_memory.h"

namespace lossgauge::test {

int CallBegin(const lg_vocab_parallel_args& args, ExchangeMemory& contribution);
int CallFinish(const lg_vocab_parallel_args& args, const ExchangeMemory& gathered);

// The call of args.linear, on the thread of a rank that calls beside others.
int CallLinear(const lg_vocab_parallel_linear_args& args);
// Between the test's memory and what an exchange is given.
void CopyFromExchange(void* to, const void* from, std::size_t bytes, void* stream);
void CopyToExchange(void* to, const void* from, std::size_t bytes, void* stream);

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_CALLS_H_
