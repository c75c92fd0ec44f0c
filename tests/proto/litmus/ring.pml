/* The ring protocol of proto/lossgauge/ring/ring_abi.h as a Promela model: one writer, one reader, all interleavings.
 *
 * Spin's memory is sequentially consistent, so what the orders of ring_abi.h leave free is written out: the stores of a publication happen
 * in every order that "odd before each payload word, payload before even, even before cursor" allows, the next odd word may come as
 * early as it likes in another slot, and the reader loads payload words in any order between its two looks.
 *
 * The checksum is left out on purpose: the sequence words alone must do. Claims:
 *   - a record that is delivered is whole and is the publication it is taken for;
 *   - a reader never takes a sound ring for damaged or corrupt;
 *   - when the writer has ended, delivered + lost = written.
 *
 * Each macro takes one order away, and then a claim must fail: RELAXED_PAYLOAD (payload may pass the odd word), EARLY_EVEN (even word may
 * pass the payload), RELAXED_READER (second look may pass the payload loads), EARLY_CURSOR (cursor may pass the even word).
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#define N 5

#ifdef RELAXED_PAYLOAD
#define PAYLOAD_MAY_GO true
#else
#define PAYLOAD_MAY_GO odd
#endif
#ifdef EARLY_EVEN
#define EVEN_MAY_GO odd
#else
#define EVEN_MAY_GO (odd && wrote_a && wrote_b)
#endif
#ifdef EARLY_CURSOR
#define CURSOR_MAY_GO odd
#else
#define CURSOR_MAY_GO even
#endif

#define SLOT(n) (((n) - 1) % SLOTS)

byte seq[SLOTS];
byte a[SLOTS];
byte b[SLOTS];
byte cursor;
bool done;

active proctype Writer() {
  byte n = 1;
  bool odd, wrote_a, wrote_b, even, counted, next_odd;
  do
  :: n <= N ->
    do
    :: atomic { !odd -> seq[SLOT(n)] = 2 * n - 1; odd = true }
    :: atomic { !wrote_a && PAYLOAD_MAY_GO -> a[SLOT(n)] = n; wrote_a = true }
    :: atomic { !wrote_b && PAYLOAD_MAY_GO -> b[SLOT(n)] = n; wrote_b = true }
    :: atomic { !even && EVEN_MAY_GO -> seq[SLOT(n)] = 2 * n; even = true }
    :: atomic { !counted && CURSOR_MAY_GO -> cursor = n; counted = true }
    :: atomic { SLOTS > 1 && odd && !next_odd && n < N -> seq[SLOT(n + 1)] = 2 * (n + 1) - 1; next_odd = true }
    :: odd && wrote_a && wrote_b && even && counted -> break
    od;
    atomic { n++; odd = next_odd; next_odd = false; wrote_a = false; wrote_b = false; even = false; counted = false }
  :: else -> break
  od;
  done = true
}

byte next = 1;
byte delivered, lost;

/* RingReader::TryRead */
inline TryRead(taken) {
  taken = false;
  first = seq[SLOT(next)];
  if
  :: first == 2 * next ->
    got_a = false; got_b = false; looked = false;
    do
    :: atomic { !got_a -> copy_a = a[SLOT(next)]; got_a = true }
    :: atomic { !got_b -> copy_b = b[SLOT(next)]; got_b = true }
#ifdef RELAXED_READER
    :: atomic { !looked -> second = seq[SLOT(next)]; looked = true }
#else
    :: atomic { !looked && got_a && got_b -> second = seq[SLOT(next)]; looked = true }
#endif
    :: got_a && got_b && looked -> break
    od;
    if
    :: second == 2 * next ->
      assert(copy_a == next && copy_b == next);
      delivered++; next++; lapped = 0;
      taken = true
    :: else
    fi
  :: else
  fi
}

active proctype Reader() {
  byte first, second, copy_a, copy_b, seen, newest, sequence, target, kept;
  bool got_a, got_b, looked, taken, ended;
  byte lapped = 0;
  do
  :: true ->
    ended = done;
    TryRead(taken);
    if
    :: taken -> goto again
    :: else
    fi;
    seen = cursor;
    if
    :: seen < next && ended -> break
    :: seen < next && !ended -> goto again
    :: else
    fi;
    TryRead(taken);
    if
    :: taken -> goto again
    :: else
    fi;
    sequence = seq[SLOT(next)];
    newest = seq[SLOT(seen)];
    assert(newest >= 2 * seen); /* else kDamaged */
    assert(sequence > 2 * next); /* else kCorrupt */
    kept = (lapped == 0 -> SLOTS : (SLOTS + 1) / 2);
    target = (seen >= kept -> seen - kept + 1 : 1);
    target = (target <= next -> next + 1 : target);
    lost = lost + target - next;
    next = target;
    lapped = 1;
again:
    skip
  od;
  assert(delivered + lost == N)
}
