// The checking mode of the host executor: every access goes through a shadow that knows who touched an element last, and when.
// Time is counted in epochs: a block's epoch ends at its barriers, a cluster's at cluster barriers.

//@ tf_checker
struct tf_touch {            // one access; `kind` is 0 for none, 1 plain, 2 atomic, 3 by a call's threads together
  long long block;
  int thread, rank, site;
  unsigned epoch, cluster_epoch, arrivals;
  unsigned char kind;
};

struct tf_cell {             // what is known of an element (of a granule of shared memory)
  tf_touch write, read, other_read;  // the last write, the last read, the last read by another thread than that
  int buffer;                // shared memory: which buffer wrote it
  int pending;               // shared memory: number of the transaction barrier an unfinished copy completes on, plus 1
  unsigned char ring;        // shared memory: state of the ring's slot that it belongs to, 0 outside rings; see tf_ring
  int stored;                // shared memory: tensor stores that still read it
  long long stamp;           // shared memory: when a thread stored it, 0 for what the copy engine brought
  bool written;
};

// A hash table of numbers by two numbers. Own code, because the standard library's maps take half a second to compile.
struct tf_table {
  struct entry { long long key, more, value, other; bool used; };
  std::vector<entry> entries;
  int size = 0;

  // The entry of a key, or the free one where it belongs.
  int place(long long key, long long more) const {
    const unsigned long long mixed = (unsigned long long)key * 0x9e3779b97f4a7c15ull + (unsigned long long)more * 0xc2b2ae3d27d4eb4full;
    const int last = (int)entries.size() - 1;
    int at = (int)(mixed >> 33) & last;
    while (entries[at].used && (entries[at].key != key || entries[at].more != more)) at = (at + 1) & last;
    return at;
  }
  const entry* find(long long key, long long more) const {
    if (entries.empty()) return nullptr;
    const entry& there = entries[place(key, more)];
    return there.used ? &there : nullptr;
  }
  entry& at(long long key, long long more) {
    if (2 * size >= (int)entries.size()) grow();
    entry& there = entries[place(key, more)];
    if (!there.used) ++size;
    there.key = key, there.more = more, there.used = true;
    return there;
  }
  void grow() {
    std::vector<entry> before(entries.empty() ? 16 : 2 * entries.size(), entry{});
    before.swap(entries);
    for (const entry& moved : before)
      if (moved.used) entries[place(moved.key, moved.more)] = moved;
  }
  void clear() { entries.clear(), size = 0; }
};

struct tf_arrival { long long block; int before; };  // before: number of the arrival before at the same counter cell, plus 1

struct tf_checker {
  const char* kernel;
  const char* const* sites;
  char* report;
  long report_size, used = 0;
  long long found = 0;
  long long block = 0;
  int thread = 0, rank = 0, threads, cluster;
  std::vector<unsigned> epochs, arrivals;
  std::vector<unsigned> together_since;                 // by rank: epoch that the last barrier of all threads began
  tf_table team_since;       // by threads of a team and its first thread's lane: the same for the team's barriers
  unsigned cluster_epoch = 0;
  unsigned cluster_since = 0;  // the same of the last cluster barrier of all threads, in epochs of the cluster
  tf_table cluster_teams;    // by threads of a team and its first one: of the last barrier of these in all blocks
  long long clusters_begun = 0;
  tf_table meeting_teams;    // counter cell -> cluster, first thread of its team
  tf_table last_meetings;    // first thread of a team -> counter cell
  std::vector<tf_arrival> arrived;
  tf_table waiting;          // counter cell -> number of its last arrival plus 1, arrivals that no last block has followed yet
  tf_table acquired;         // last block, block -> arrivals of the second that the first has seen
  tf_table repeated;         // statement, rule -> findings
  tf_touch last_remote = {};
  std::vector<unsigned> issued, finished;  // by thread: warpgroup products that it has issued, and of those the ones that it has waited for
  int together = 0;  // the call whose threads touch memory together now, nobody knows which of them what

  tf_checker(const char* name, const char* const* texts, char* text, long size, int num_threads, int num_ranks, long long num_blocks)
      : kernel(name), sites(texts), report(text), report_size(size), threads(num_threads), cluster(num_ranks), epochs(num_ranks, 1u),
        arrivals(num_blocks, 0u), together_since(num_ranks, 1u), issued(num_ranks * num_threads, 0u), finished(num_ranks * num_threads, 0u) {
    if (report && report_size > 0) report[0] = 0;
  }

  // One finding: reported the first time at a site, counted afterwards; 40 lines at most.
  void finding(const char* rule, int site, const char* buffer, long long index, const tf_touch* before = nullptr) {
    ++found;
    if (repeated.at(site, (long long)rule).value++ || repeated.size > 40 || !report) return;
    char line[768];
    int length = std::snprintf(line, sizeof line, "%s: %s: %s[%lld], thread %d of block %lld", kernel, rule, buffer, index, thread, block);
    if (before && length < (int)sizeof line)
      length += std::snprintf(line + length, sizeof line - length, ", against thread %d of block %lld at <%s>", before->thread, before->block,
                              sites[before->site]);
    if (length < (int)sizeof line) length += std::snprintf(line + length, sizeof line - length, ", at <%s>\n", sites[site]);
    if (length >= (int)sizeof line) length = (int)sizeof line - 1;
    if (used + length >= report_size) return;
    std::memcpy(report + used, line, length + 1);
    used += length;
  }

  tf_touch touch(int site, bool atomic = false) const {
    const unsigned char kind = together ? 3 : atomic ? 2 : 1;
    return {block, together ? -1 : thread, rank, site, epochs[rank], cluster_epoch, arrivals[block], kind};
  }

  // Whether an earlier access by another thread may happen at the same time as one now.
  bool concurrent(const tf_touch& before) const {
    if (!before.kind || (before.block == block && before.thread == thread && !together)) return false;
    if (together && before.kind == 3 && before.block == block && before.site == together) return false;
    if (before.block == block) return before.epoch == epochs[rank] || !ordered(before);
    if (cluster > 1 && before.block / cluster == block / cluster) return !exchanged(before);
    const tf_table::entry* seen = acquired.find(block, before.block);
    return !seen || seen->value <= before.arrivals;
  }

  // Whether a barrier since an earlier access of this block had both threads, its own and the one at hand.
  bool ordered(const tf_touch& before) const {
    if (together_since[rank] > before.epoch || together || before.kind == 3) return true;
    for (const tf_table::entry& team : team_since.entries)
      if (team.used && team.value > before.epoch && member(team, before.thread) && member(team, thread)) return true;
    return false;
  }
  // Whether a cluster barrier since an access of another block of the cluster had both threads.
  bool exchanged(const tf_touch& before) const {
    if (cluster_since > before.cluster_epoch) return true;
    for (const tf_table::entry& team : cluster_teams.entries) {
      const long long first = team.more, last = first + team.key;
      if (team.used && team.value > before.cluster_epoch && before.thread >= first && before.thread < last && thread >= first && thread < last)
        return true;
    }
    return false;
  }
  bool member(const tf_table::entry& team, int who) const {
    const int lane = rank * threads + who;
    return lane >= team.more && lane < team.more + team.key;
  }

  int lane() const { return rank * threads + thread; }
  // Whether product `number` of a thread (of this one) is in flight; 0: none.
  bool flies(unsigned number, int who) const { return number > finished[who]; }
  bool flies(unsigned number) const { return flies(number, lane()); }
  unsigned next_product() const { return issued[lane()] + 1; }
  void issue_product() { ++issued[lane()]; }
  void wait_products(unsigned pending) {
    const unsigned all = issued[lane()];
    if (all > pending && all - pending > finished[lane()]) finished[lane()] = all - pending;
  }

  void reads(tf_cell& cell, int site, const char* buffer, long long index) {
    if (cell.ring && cell.ring != 3) finding("slot of a ring read outside its Consume", site, buffer, index);
    if (cell.pending) finding("read before the asynchronous copy has arrived", site, buffer, index);
    if (!cell.written) finding("read of unwritten memory", site, buffer, index);
    else if (concurrent(cell.write)) finding("race, read and write", site, buffer, index, &cell.write);
    const tf_touch now = touch(site);
    if (cell.read.kind && (cell.read.block != now.block || cell.read.thread != now.thread)) cell.other_read = cell.read;
    cell.read = now;
  }

  void writes(tf_cell& cell, int site, const char* buffer, long long index, bool atomic = false) {
    const tf_touch now = touch(site, atomic);
    if (cell.ring && cell.ring != 1 && cell.ring != 3) finding("slot of a ring written outside its Produce and its Consume", site, buffer, index);
    if (cell.pending) finding("write before the asynchronous copy has arrived", site, buffer, index);
    if (cell.stored) finding("write of memory that a tensor store still reads", site, buffer, index, &cell.read);
    if (concurrent(cell.write) && !(atomic && cell.write.kind == 2)) finding("race, two writes", site, buffer, index, &cell.write);
    if (concurrent(cell.read)) finding("race, read and write", site, buffer, index, &cell.read);
    else if (concurrent(cell.other_read)) finding("race, read and write", site, buffer, index, &cell.other_read);
    cell.write = now;
    cell.written = true;
  }

  void block_barrier() { together_since[rank] = ++epochs[rank]; }

  // The threads `first` .. first + running - 1 meet, `team` of them at a time.
  void team_barrier(int team, int first, int running) {
    ++epochs[rank];
    for (int n = 0; n < running; n += team) team_since.at(team, rank * threads + first + n).value = epochs[rank];
  }

  void cluster_barrier() {
    for (int n = 0; n < cluster; ++n) together_since[n] = ++epochs[n];
    cluster_since = ++cluster_epoch;
    last_remote.kind = 0;
  }

  // The same, of the threads `first` .. first + running - 1 of every block, `team` of them at a time.
  void cluster_team_barrier(int team, int first, int running) {
    ++cluster_epoch;
    for (int n = 0; n < cluster; ++n) {
      ++epochs[n];
      for (int m = 0; m < running; m += team) {
        team_since.at(team, n * threads + first + m).value = epochs[n];
        cluster_teams.at(team, first + m).value = cluster_epoch;
      }
    }
    last_remote.kind = 0;
  }

  // A team of all blocks of a cluster meets at a counter, which is free again once the team has met at another one.
  void meets(const void* counter, const char* name, long long size, long long index, int first, int site) {
    if (index < 0 || index >= size) return finding("no such counter", site, name, index);
    const long long cell = (long long)counter;
    const bool is_new = !meeting_teams.find(cell, index);
    tf_table::entry& team = meeting_teams.at(cell, index);
    if (is_new) team.value = clusters_begun, team.other = first;
    if (team.value != clusters_begun || team.other != first) finding("counter of a meeting is another team's", site, name, index);
    const tf_table::entry* before = last_meetings.find(first, 0);
    if (before && before->value == cell && before->other == index)
      finding("counter used again before another meeting of its team", site, name, index);
    tf_table::entry& last = last_meetings.at(first, 0);
    last.value = cell, last.other = index;
  }

  void begin_cluster() {
    ++clusters_begun;
    last_meetings.clear();
    cluster_epoch = cluster_since = 0;
    cluster_teams.clear();
    last_remote.kind = 0;
  }

  void end_cluster() {
    if (last_remote.kind) finding("shared memory of another block used after the last cluster barrier", last_remote.site, "rank", rank);
  }

  bool arrives(const void* counter, long long index, long long count) {
    tf_table::entry& cell = waiting.at((long long)counter, index);
    arrived.push_back({block, (int)cell.value});
    cell.value = (long long)arrived.size();
    ++cell.other;
    ++arrivals[block];
    together_since[rank] = ++epochs[rank];
    if (cell.other < count) return false;
    for (int n = (int)cell.value; n; n = arrived[n - 1].before) acquired.at(block, arrived[n - 1].block).value = arrivals[arrived[n - 1].block];
    cell.value = cell.other = 0;
    return true;
  }

  int result() const { return found > 1000000 ? 1000000 : (int)found; }
};

//@ tf_global
// A global buffer. `cells` stays empty for one that the kernel only reads.
template <class T> struct tf_global {
  tf_checker& check;
  const char* name;
  T* data;
  long long size;
  bool writable;
  std::vector<tf_cell> cells;

  tf_global(tf_checker& owner, const char* text, void* memory, long long elements, bool is_written, bool is_initial)
      : check(owner), name(text), data(static_cast<T*>(memory)), size(elements), writable(is_written) {
    tf_cell fresh = {};
    fresh.written = is_initial;
    if (is_written || !is_initial) cells.assign(elements, fresh);
  }
  bool inside(long long index, int site) {
    if (index >= 0 && index < size) return true;
    check.finding("out of bounds", site, name, index);
    return false;
  }
  T load(long long index, int site) {
    if (!inside(index, site)) return T();
    if (!cells.empty()) check.reads(cells[index], site, name, index);
    return data[index];
  }
  T* target(long long index, int site, bool atomic) {
    static T nowhere;
    if (!inside(index, site)) return &nowhere;
    if (!writable) {
      check.finding("write to a read-only buffer", site, name, index);
      return &nowhere;
    }
    if (atomic && !cells[index].written) check.finding("atomic update of unwritten memory", site, name, index);
    check.writes(cells[index], site, name, index, atomic);
    return data + index;
  }
  void store(long long index, T value, int site) { *target(index, site, false) = value; }
  bool last_block(long long index, long long count, int site) {
    return inside(index, site) && check.arrives(this, index, count);
  }
  T* address(long long index) { return data + index; }
  void mark(long long index, int site) { target(index, site, false); }
  // An output must have been written whole; with gaps between its elements, so many of them.
  void finish() { finish(size); }
  void finish(long long held) {
    long long missing = -1;
    for (long long index = size - 1; index >= 0; --index) {
      held -= cells[index].written;
      if (!cells[index].written) missing = index;
    }
    if (held > 0) check.finding("output element never written", 0, name, missing);
  }
};

//@ tf_counters_at_zero
// Counters must be left as they were found: no arrival may be missing.
template <class T> void tf_counters_at_zero(tf_checker& check, tf_global<T>& counter) {
  for (long long index = 0; index < counter.size; ++index) {
    const tf_table::entry* cell = check.waiting.find((long long)&counter, index);
    if (cell && cell->other) check.finding("counter left unfinished", 0, counter.name, index);
  }
}

//@ tf_shared tf_shared_memory tf_home_of
// One block's shared memory with its shadow, in granules of `granule` bytes.
struct tf_shared_memory {
  tf_checker& check;
  unsigned char* memory;
  long long bytes;
  int granule;
  std::vector<tf_cell> cells;
  std::vector<unsigned> arrived;  // phases completed, by transaction barrier
  struct flight { long long cell; unsigned group, next; };
  std::vector<flight> flights;              // elements of lists: a list is the number of its first plus 1, 0 if empty
  unsigned unused = 0;                      // list of those that have ended
  std::vector<unsigned> flying;             // lists, by thread: copies that it has started and not waited for
  std::vector<unsigned> groups;             // groups that a thread has ended
  struct operand { long long first, last; int who; unsigned product; };
  std::vector<operand> operands;            // bytes that warpgroup products in flight read
  std::vector<long long> due;               // elements announced and not arrived, by transaction barrier
  std::vector<unsigned> storing;            // lists, by thread: elements of its tensor stores that it has not waited for
  std::vector<unsigned> stores;             // tensor stores that a thread has started
  std::vector<long long> fenced;             // stamp of a thread's last fence
  long long clock = 0;

  tf_shared_memory(tf_checker& owner, unsigned char* place, long long num_bytes, int granule_bytes, int barriers)
      : check(owner), memory(place), bytes(num_bytes), granule(granule_bytes), cells(num_bytes / granule_bytes + 1), arrived(barriers, 0u) {}
  void begin() {
    std::fill(cells.begin(), cells.end(), tf_cell{});
    std::fill(arrived.begin(), arrived.end(), 0u);
    flights.clear();
    unused = 0;
    flying.assign(check.threads, 0u);
    groups.assign(check.threads, 0u);
    operands.clear();
    due.assign(arrived.size(), 0ll);
    storing.assign(check.threads, 0u);
    stores.assign(check.threads, 0u);
    fenced.assign(check.threads, 0ll);
    clock = 0;
    std::memset(memory, 0xee, bytes);
  }
  void wait(int barrier, unsigned phase, int site) {
    if (barrier < 0 || barrier >= (int)arrived.size()) return check.finding("no such transaction barrier", site, "barrier", barrier);
    if (!arrived[barrier] || ((arrived[barrier] - 1u) & 1u) != phase)
      check.finding("wait for a phase that no copy completes", site, "barrier", barrier);
    if (due[barrier]) check.finding("elements announced are not those that arrive", site, "barrier", barrier);
    for (tf_cell& cell : cells)
      if (cell.pending == barrier + 1) {
        cell.pending = 0;
        cell.write.kind = 0;  // complete for all threads
      }
  }
  // A store of another block (or of this one) that counts its bytes on a transaction barrier here.
  void signalled(int barrier, long long num_bytes, int site) {
    if (barrier < 0 || barrier >= (int)arrived.size()) return check.finding("no such transaction barrier", site, "barrier", barrier);
    due[barrier] += num_bytes;
  }
  // The end of an exchange: exactly the announced bytes have been sent to this block in this phase.
  void receive(int barrier, unsigned phase, long long num_bytes, int site) {
    if (barrier < 0 || barrier >= (int)arrived.size()) return check.finding("no such transaction barrier", site, "barrier", barrier);
    if ((arrived[barrier]++ & 1u) != phase) check.finding("exchange in a phase that is not the barrier's next", site, "barrier", barrier);
    if (due[barrier] != num_bytes) check.finding("bytes of an exchange are not those that are sent", site, "barrier", barrier);
    due[barrier] = 0;
  }
  // A product of this thread's warpgroup reads these bytes; one thread of each warp stands for its warp.
  void product_reads(long long first, long long last) {
    if (check.thread % 32 == 0) operands.push_back({first, last, check.lane(), check.next_product()});
  }
  bool read_by_product(long long first, long long last) {
    std::vector<operand> flying;
    bool is_read = false;
    for (const operand& o : operands) {
      if (!check.flies(o.product, o.who)) continue;
      flying.push_back(o);
      is_read = is_read || (o.first <= last && first <= o.last);
    }
    operands.swap(flying);
    return is_read;
  }
  void begin_flight(std::vector<unsigned>& lists, long long cell, unsigned group) {
    const unsigned n = unused;
    if (n) unused = flights[n - 1].next;
    else flights.push_back(flight{});
    const unsigned mine = n ? n : (unsigned)flights.size();
    flights[mine - 1] = {cell, group, lists[check.thread]};
    lists[check.thread] = mine;
  }
  void fence() { fenced[check.thread] = clock; }
  // The copy engine has read what this thread's stores but the last `left` take: for other threads, the thread reads it now.
  void wait_stores(unsigned left, int thread, int site) {
    check.thread = thread;
    unsigned still = 0;
    for (unsigned n = storing[thread], next; n; n = next) {
      flight& f = flights[n - 1];
      next = f.next;
      if (f.group + left > stores[thread]) {
        f.next = still, still = n;
        continue;
      }
      f.next = unused, unused = n;
      tf_cell& cell = cells[f.cell];
      --cell.stored;
      if (cell.read.kind && cell.read.thread != thread) cell.other_read = cell.read;
      cell.read = check.touch(site);
    }
    storing[thread] = still;
  }
  void end_group() { ++groups[check.thread]; }
  void wait_group(unsigned left) {
    unsigned still = 0;
    for (unsigned n = flying[check.thread], next; n; n = next) {
      flight& f = flights[n - 1];
      next = f.next;
      if (f.group + left < groups[check.thread]) {
        cells[f.cell].pending = 0;
        f.next = unused, unused = n;
      } else {
        f.next = still, still = n;
      }
    }
    flying[check.thread] = still;
  }
  // A copy that arrives after its block is gone writes to whatever holds the memory then.
  void end() {
    for (const tf_cell& cell : cells)
      if (cell.pending) return check.finding("copy still on its way at the end of its block", 0, "barrier", cell.pending - 1);
    for (const tf_cell& cell : cells)
      if (cell.stored) return check.finding("tensor store still reads shared memory at the end of its block", 0, "cell", &cell - cells.data());
    for (unsigned n = 0; n < due.size(); ++n)
      if (due[n]) return check.finding("signalled stores that no exchange waits for", 0, "barrier", n);
  }
};

// The shared memory of the block with this rank.
inline tf_shared_memory& tf_home_of(tf_shared_memory* homes, long long rank, int site) {
  if (rank >= 0 && rank < homes->check.cluster) return homes[rank];
  homes->check.finding("no such rank in the cluster", site, "rank", rank);
  return homes[0];
}

// A shared buffer within it.
template <class T> struct tf_shared {
  tf_shared_memory& home;
  const char* name;
  int number;
  long long offset, size;

  bool inside(long long index, int site) {
    if (index >= 0 && index < size && offset + (index + 1) * (long long)sizeof(T) <= home.bytes) return true;
    home.check.finding("out of bounds", site, name, index);
    return false;
  }
  T* place(long long index) { return reinterpret_cast<T*>(home.memory + offset) + index; }
  tf_cell* cells(long long index) { return home.cells.data() + (offset + index * (long long)sizeof(T)) / home.granule; }
  static constexpr int least(int a, int b) { return a < b ? a : b; }
  T load(long long index, int site) {
    if (!inside(index, site)) return T();
    tf_cell* const cell = cells(index);
    for (int n = 0; n < (int)sizeof(T) / home.granule; ++n) {
      home.check.reads(cell[n], site, name, index);
      if (cell[n].written && cell[n].buffer != number) home.check.finding("read of memory that another buffer overwrote", site, name, index, &cell[n].write);
    }
    return *place(index);
  }
  void mark(long long index, int site, bool atomic) {
    tf_cell* const cell = cells(index);
    const long long byte = offset + index * (long long)sizeof(T);
    if (!home.operands.empty() && home.read_by_product(byte, byte + (long long)sizeof(T) - 1))
      home.check.finding("write to memory that a product in flight reads", site, name, index);
    for (int n = 0; n < (int)sizeof(T) / home.granule; ++n) {
      home.check.writes(cell[n], site, name, index, atomic);
      cell[n].buffer = number;
      cell[n].stamp = ++home.clock;
    }
  }
  T* address(long long index) { return place(index); }
  void mark(long long index, int site) {
    if (inside(index, site)) mark(index, site, false);
  }
  void store(long long index, T value, int site) {
    if (!inside(index, site)) return;
    mark(index, site, false);
    *place(index) = value;
  }
  T* target(long long index, int site, bool atomic) {
    static T nowhere;
    if (!inside(index, site)) return &nowhere;
    if (!cells(index)->written) home.check.finding("atomic update of unwritten memory", site, name, index);
    mark(index, site, atomic);
    return place(index);
  }
};

//@ tf_remote
// The same buffer in another block of the cluster; barriers of the whole cluster must stand before the first and after the last use.
template <class T> struct tf_remote {
  tf_shared<T> buffer;
  bool own;

  void used(int site) {
    tf_checker& check = buffer.home.check;
    if (own) return;
    if (!check.cluster_epoch) check.finding("shared memory of another block used before the first cluster barrier", site, buffer.name, 0);
    check.last_remote = check.touch(site);
  }
  T load(long long index, int site) {
    used(site);
    return buffer.load(index, site);
  }
  void store(long long index, T value, int site) {
    used(site);
    buffer.store(index, value, site);
  }
};

//@ tf_bulk_copy_checked
template <class T, class Source> void tf_bulk_copy_checked(tf_shared<T>& shared, long long at, Source& buffer, long long index,
                                                           long long elements, int barrier, bool arrive, int thread, int site) {
  tf_checker& check = shared.home.check;
  if ((shared.offset + at * (long long)sizeof(T)) % 16 || index * (long long)sizeof(T) % 16 || elements * (long long)sizeof(T) % 16)
    check.finding("bulk copy that is not aligned to 16 bytes", site, shared.name, at);
  if (barrier < 0 || barrier >= (int)shared.home.arrived.size()) return check.finding("no such transaction barrier", site, "barrier", barrier);
  check.thread = thread;
  for (long long n = 0; n < elements; ++n) {
    shared.store(at + n, buffer.load(index + n, site), site);
    if (at + n >= 0 && at + n < shared.size && shared.offset + (at + n + 1) * (long long)sizeof(T) <= shared.home.bytes)
      for (int part = 0; part < (int)sizeof(T) / shared.home.granule; ++part) shared.cells(at + n)[part].pending = barrier + 1;
  }
  if (arrive) ++shared.home.arrived[barrier];
}

//@ tf_async_copy_checked
template <class T, class Source> void tf_async_copy_checked(tf_shared<T>& shared, long long at, Source& buffer, long long index,
                                                            long long elements, int site) {
  tf_shared_memory& home = shared.home;
  const long long bytes = elements * (long long)sizeof(T);
  if ((shared.offset + at * (long long)sizeof(T)) % bytes || index * (long long)sizeof(T) % bytes || (bytes != 4 && bytes != 8 && bytes != 16))
    home.check.finding("copy that is not 4, 8 or 16 aligned bytes", site, shared.name, at);
  for (long long n = 0; n < elements; ++n) {
    shared.store(at + n, buffer.load(index + n, site), site);
    if (at + n < 0 || at + n >= shared.size || shared.offset + (at + n + 1) * (long long)sizeof(T) > home.bytes) continue;
    for (int part = 0; part < (int)sizeof(T) / home.granule; ++part) {
      tf_cell* const cell = shared.cells(at + n) + part;
      cell->pending = -1;
      home.begin_flight(home.flying, cell - home.cells.data(), home.groups[home.check.thread]);
    }
  }
}

//@ tf_registers
// Registers of one thread: a scalar (SIZE 1) or an array.
template <class T, int SIZE> struct tf_registers {
  tf_checker& check;
  const char* name;
  T values[SIZE];
  bool known[SIZE] = {};
  unsigned writer[SIZE] = {}, reader[SIZE] = {};  // the thread's last warpgroup product that writes, that reads an element

  tf_registers(tf_checker& owner, const char* text) : check(owner), name(text) {}
  bool inside(long long index, int site) {
    if (index >= 0 && index < SIZE) return true;
    check.finding("register array out of bounds", site, name, index);
    return false;
  }
  T get(long long, long long index, int site) {
    if (!inside(index, site)) return T();
    if (!known[index]) {
      check.finding("read of an unset register", site, name, index);
      return T();
    }
    if (check.flies(writer[index])) check.finding("read of a register before its product has finished", site, name, index);
    return values[index];
  }
  void set(long long, long long index, T value, int site) {
    if (!inside(index, site)) return;
    if (check.flies(writer[index]) || check.flies(reader[index]))
      check.finding("register set before its product has finished", site, name, index);
    values[index] = value;
    known[index] = true;
  }
  // A product's own access to its sums: products in flight add to the same registers in order.
  T sum(long long, long long index, int site) {
    if (!inside(index, site)) return T();
    if (!known[index]) check.finding("read of an unset register", site, name, index);
    return values[index];
  }
  void set_sum(long long, long long index, T value, int site) {
    if (!inside(index, site)) return;
    values[index] = value;
    known[index] = true;
  }
  void product_writes(long long, long long count) { for (int n = 0; n < count && n < SIZE; ++n) writer[n] = check.next_product(); }
  void product_reads(long long, long long count) { for (int n = 0; n < count && n < SIZE; ++n) reader[n] = check.next_product(); }
  T* address(long long, long long index) { return values + index; }
  void mark(long long, long long index, int site) {
    if (inside(index, site)) known[index] = true;
  }
};

//@ tf_spread_registers
// Registers that live across meeting points: `size` for each thread of the block (of the cluster).
template <class T> struct tf_spread_registers {
  tf_checker& check;
  const char* name;
  long long size;
  std::vector<T> values;
  std::vector<unsigned char> known;
  std::vector<unsigned> writer, reader;  // as of tf_registers

  tf_spread_registers(tf_checker& owner, const char* text, long long each, long long threads)
      : check(owner), name(text), size(each), values(each * threads), known(each * threads, 0),
        writer(each * threads, 0u), reader(each * threads, 0u) {}
  bool inside(long long index, int site) {
    if (index >= 0 && index < size) return true;
    check.finding("register array out of bounds", site, name, index);
    return false;
  }
  T get(long long who, long long index, int site) {
    if (!inside(index, site)) return T();
    if (!known[who * size + index]) {
      check.finding("read of an unset register", site, name, index);
      return T();
    }
    if (check.flies(writer[who * size + index], (int)who)) check.finding("read of a register before its product has finished", site, name, index);
    return values[who * size + index];
  }
  void set(long long who, long long index, T value, int site) {
    if (!inside(index, site)) return;
    if (check.flies(writer[who * size + index], (int)who) || check.flies(reader[who * size + index], (int)who))
      check.finding("register set before its product has finished", site, name, index);
    values[who * size + index] = value;
    known[who * size + index] = 1;
  }
  T sum(long long who, long long index, int site) {
    if (!inside(index, site)) return T();
    if (!known[who * size + index]) check.finding("read of an unset register", site, name, index);
    return values[who * size + index];
  }
  void set_sum(long long who, long long index, T value, int site) {
    if (!inside(index, site)) return;
    values[who * size + index] = value;
    known[who * size + index] = 1;
  }
  void product_writes(long long who, long long count) {
    for (long long n = 0; n < count && n < size; ++n) writer[who * size + n] = check.next_product();
  }
  void product_reads(long long who, long long count) {
    for (long long n = 0; n < count && n < size; ++n) reader[who * size + n] = check.next_product();
  }
  T* address(long long who, long long index) { return values.data() + who * size + index; }
  void mark(long long who, long long index, int site) {
    if (inside(index, site)) known[who * size + index] = 1;
  }
};

//@ tf_claimed
// An index that memory decides, which the kernel claims to be one of 0 .. extent - 1.
inline long long tf_claimed(tf_checker& check, long long index, long long extent, const char* name, int site) {
  if (index < 0 || index >= extent) check.finding("index from memory beyond its extent", site, name, index);
  return index;
}

//@ tf_together_read
// Words that the threads of a call read, or write, together: the call is told only of all of them.
template <class Memory> void tf_together_read(tf_checker& check, Memory& memory, long long index, int site) {
  check.together = site;
  memory.load(index, site);
  check.together = 0;
}

//@ tf_together_write
template <class Memory> void tf_together_write(tf_checker& check, Memory& memory, long long index, int site) {
  check.together = site;
  memory.mark(index, site);
  check.together = 0;
}

//@ tf_vector_load_checked
template <class Registers, class Source> void tf_vector_load_checked(Registers& registers, long long who, long long at, Source& buffer,
                                                                     long long index, int width, int alignment, int site) {
  if (index % alignment) registers.check.finding("vector access that is not aligned", site, buffer.name, index);
  for (int lane = 0; lane < width; ++lane) registers.set(who, at + lane, buffer.load(index + lane, site), site);
}

//@ tf_vector_store_checked
template <class Registers, class Target> void tf_vector_store_checked(Target& buffer, long long index, Registers& registers, long long who,
                                                                      long long at, int width, int alignment, int site) {
  if (index % alignment) registers.check.finding("vector access that is not aligned", site, buffer.name, index);
  for (int lane = 0; lane < width; ++lane) buffer.store(index + lane, registers.get(who, at + lane, site), site);
}
