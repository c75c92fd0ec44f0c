// Places between two accesses to a ring where a test may kill, stop or overtake the writer or the reader. In products they are no code.
#ifndef LOSSGAUGE_RING_CUT_POINTS_H_
#define LOSSGAUGE_RING_CUT_POINTS_H_

namespace lossgauge::ring {

struct NoCutPoints {
  void operator()() const {}
};

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_RING_CUT_POINTS_H_
