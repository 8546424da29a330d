// Waits and publications of tasks in the checking mode: a task has seen what another wrote if it awaited it, directly or through others.

//@ tf_task_checker
struct tf_task_checker {
  tf_checker& check;
  struct published { long long block; std::map<long long, unsigned> seen; };
  std::map<long long, std::vector<published>> by_counter;

  explicit tf_task_checker(tf_checker& owner) : check(owner) {}

  // A wait that counts all publications so far orders them; one that counts fewer orders none, because it cannot tell which.
  void await(long long counter, long long count, unsigned value, const char* name, int site) {
    check.together_since[check.rank] = ++check.epochs[check.rank];
    for (long long n = counter; n < counter + count; ++n) {
      const std::vector<published>& done = by_counter[n];
      if (done.size() < value) check.finding("wait for tasks that are not before it", site, name, n);
      if (done.size() != value) continue;
      std::map<long long, unsigned>& mine = check.acquired[check.block];
      for (const published& p : done)
        for (const auto& [block, arrivals] : p.seen) {
          unsigned& known = mine[block];
          if (known < arrivals) known = arrivals;
        }
    }
  }
  void publish(long long counter) {
    check.together_since[check.rank] = ++check.epochs[check.rank];
    ++check.arrivals[check.block];
    std::map<long long, unsigned> seen = check.acquired[check.block];
    seen[check.block] = check.arrivals[check.block];
    by_counter[counter].push_back({check.block, seen});
  }
};
