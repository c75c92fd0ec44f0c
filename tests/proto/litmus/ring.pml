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
 * GPU: a GPU writer's orders: only "payload before even and before this publication's store to the cursor, which is one less"; the next publication
 * (of the same kernel) may come as early as it likes. There the checksum stands for the odd word, and a reader that it stops looks again. Claims: those
 * above, even if nobody stores the last number into the cursor, and
 *   - a checksum fails only where the next lap may have begun as far as the cursor tells (AHEAD: kMostAheadOfCursor of ring_reader.h), and not for ever.
 *
 * Each macro takes one order away, and then a claim must fail: RELAXED_PAYLOAD (payload may pass the odd word), EARLY_EVEN (even word may
 * pass the payload), RELAXED_READER (second look may pass the payload loads), EARLY_CURSOR (cursor may pass the even word); of a GPU: EARLY_EVEN,
 * EXACT_CURSOR (the cursor is n and not n - 1), NO_CHECKSUM, AHEAD less than 3, BY_CURSOR (a lapped reader goes by the cursor alone).
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#define N 5

#if defined(RELAXED_PAYLOAD) || defined(GPU)
#define PAYLOAD_MAY_GO true
#else
#define PAYLOAD_MAY_GO odd
#endif
#ifdef EARLY_EVEN
#define EVEN_MAY_GO odd
#else
#define EVEN_MAY_GO (odd && wrote_a && wrote_b)
#endif
#if defined(EARLY_CURSOR)
#define CURSOR_MAY_GO odd
#elif defined(GPU)
#define CURSOR_MAY_GO (odd && wrote_a && wrote_b)
#else
#define CURSOR_MAY_GO even
#endif
#if defined(GPU) && !defined(EXACT_CURSOR)
#define COUNTED(n) ((n) - 1)
#else
#define COUNTED(n) (n)
#endif
#ifndef AHEAD
#define AHEAD 3
#endif

#define SLOT(n) (((n) - 1) % SLOTS)

byte seq[SLOTS];
byte a[SLOTS];
byte b[SLOTS];
byte cursor;
bool done;

active proctype Writer() {
  byte n = 1;
  bool odd, wrote_a, wrote_b, even, counted, next_odd, next_a, next_b;
  do
  :: n <= N ->
    do
    :: atomic { !odd -> seq[SLOT(n)] = 2 * n - 1; odd = true }
    :: atomic { !wrote_a && PAYLOAD_MAY_GO -> a[SLOT(n)] = n; wrote_a = true }
    :: atomic { !wrote_b && PAYLOAD_MAY_GO -> b[SLOT(n)] = n; wrote_b = true }
    :: atomic { !even && EVEN_MAY_GO -> seq[SLOT(n)] = 2 * n; even = true }
    :: atomic { !counted && CURSOR_MAY_GO -> cursor = COUNTED(n); counted = true }
    :: atomic { SLOTS > 1 && odd && !next_odd && n < N -> seq[SLOT(n + 1)] = 2 * (n + 1) - 1; next_odd = true }
#ifdef GPU
    :: atomic { wrote_a && !next_a && n < N -> a[SLOT(n + 1)] = n + 1; next_a = true }
    :: atomic { wrote_b && !next_b && n < N -> b[SLOT(n + 1)] = n + 1; next_b = true }
#endif
    :: odd && wrote_a && wrote_b && even && counted -> break
    od;
    atomic { n++; odd = next_odd; next_odd = false; wrote_a = next_a; wrote_b = next_b; next_a = false; next_b = false; even = false; counted = false }
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
#if defined(GPU) && !defined(NO_CHECKSUM)
    :: second == 2 * next && !(copy_a == next && copy_b == next) ->
      assert(cursor + AHEAD >= next + SLOTS);
      assert(!ended);
      taken = true /* kUnsettled: look again */
    :: second == 2 * next && copy_a == next && copy_b == next ->
#else
    :: second == 2 * next ->
      assert(copy_a == next && copy_b == next);
#endif
      delivered++; next++; lapped = 0;
      taken = true
    :: else
    fi
  :: else
  fi
}

/* ReadProgress */
#define HOLDS(n) (seq[SLOT(n)] >= 2 * (n) - 1 && ((seq[SLOT(n)] + 1) / 2) % SLOTS == (n) % SLOTS)
inline FindBegun() {
  begun = seen;
#if defined(GPU) && !defined(BY_CURSOR)
  if
  :: HOLDS(seen + 1) -> begun = seen + 1
  :: else
  fi;
  if
  :: HOLDS(seen + 2) -> begun = seen + 2
  :: else
  fi;
  if
  :: HOLDS(seen + 3) -> begun = seen + 3
  :: else
  fi
#endif
}

active proctype Reader() {
  byte begun, first, second, copy_a, copy_b, seen, newest, sequence, target, kept;
  bool got_a, got_b, looked, taken, ended, rest_gap;
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
    FindBegun();
    target = (begun >= kept -> begun - kept + 1 : 1);
    target = (target <= next -> next + 1 : target);
    assert(!(ended && rest_gap)); /* a ring at rest has one gap at most */
    rest_gap = ended;
    lost = lost + target - next;
    next = target;
    lapped = 1;
again:
    skip
  od;
  assert(delivered + lost == N)
}
