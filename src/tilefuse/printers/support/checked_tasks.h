// Waits and publications of tasks in the checking mode: a task has seen what another wrote if it awaited it, directly or through others.

//@ tf_task_checker
struct tf_task_checker {
  struct known { long long block; unsigned arrivals; };
  struct published { int before, first, end; };  // number of the publication before at the same counter, plus 1; its part of `seen`
  tf_checker& check;
  std::vector<known> seen;                     // what blocks had seen when they published, one publication after another
  std::vector<published> publications;
  tf_table last;                               // counter -> number of its last publication plus 1, how many it has
  std::vector<std::vector<long long>> blocks;  // by block: those of which it has seen arrivals

  explicit tf_task_checker(tf_checker& owner) : check(owner), blocks(owner.arrivals.size()) {}

  // A wait that counts all publications so far orders them; one that counts fewer orders none, because it cannot tell which.
  void await(long long counter, long long count, unsigned value, const char* name, int site) {
    check.together_since[check.rank] = ++check.epochs[check.rank];
    for (long long n = counter; n < counter + count; ++n) {
      const tf_table::entry* done = last.find(n, 0);
      const long long times = done ? done->other : 0;
      if (times < (long long)value) check.finding("wait for tasks that are not before it", site, name, n);
      if (times != (long long)value) continue;
      for (int p = done ? (int)done->value : 0; p; p = publications[p - 1].before)
        for (int k = publications[p - 1].first; k < publications[p - 1].end; ++k) learn(seen[k]);
    }
  }
  void learn(const known& other) {
    if (!check.acquired.find(check.block, other.block)) blocks[check.block].push_back(other.block);
    tf_table::entry& mine = check.acquired.at(check.block, other.block);
    if (mine.value < (long long)other.arrivals) mine.value = other.arrivals;
  }
  void publish(long long counter) {
    check.together_since[check.rank] = ++check.epochs[check.rank];
    ++check.arrivals[check.block];
    const int first = (int)seen.size();
    for (long long other : blocks[check.block])
      if (other != check.block) seen.push_back({other, (unsigned)check.acquired.find(check.block, other)->value});
    seen.push_back({check.block, check.arrivals[check.block]});
    tf_table::entry& all = last.at(counter, 0);
    publications.push_back({(int)all.value, first, (int)seen.size()});
    all.value = (long long)publications.size();
    ++all.other;
  }
};
