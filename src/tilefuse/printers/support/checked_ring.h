// The checking mode's rings: every filling and use of a slot goes through a state that knows whether the roles would have waited.

//@ tf_product_load
// An element of a warpgroup product's operand, which the product reads behind a fence of the thread that stored it.
template <class T> T tf_product_load(tf_shared<T>& shared, long long index, int site) {
  if (shared.inside(index, site) && tf_unfenced(shared, index))
    shared.home.check.finding("product of elements that a thread stored without a fence", site, shared.name, index, &shared.cells(index)->write);
  return shared.load(index, site);
}

//@ tf_ring
// The slots of one ring in one block's shared memory. A cell's `ring` is the state of its slot: 1 being filled, 2 full or empty and open to
// no one, 3 open to consumers.
struct tf_ring {
  struct tile { long long first, bytes; };  // the first slot of one buffer
  tf_shared_memory& home;
  const char* name;
  int slots, site;  // statement that changes the state
  std::vector<tile> tiles;
  long long filled = 0, used = 0, released = 0;

  tf_ring(tf_shared_memory& memory, const char* text, int num_slots, int begin_site, std::vector<tile> places)
      : home(memory), name(text), slots(num_slots), site(begin_site), tiles(places) {
    for (int slot = 0; slot < slots; ++slot) each(slot, [](tf_cell& cell) { cell.ring = 2; });
  }
  tf_ring& at(int number) {
    site = number;
    return *this;
  }
  template <class Change> void each(long long number, Change change) {
    for (const tile& t : tiles)
      for (long long byte = t.first + number % slots * t.bytes, end = byte + t.bytes; byte < end && byte < home.bytes; byte += home.granule)
        change(home.cells[byte / home.granule]);
  }
  void fill() {
    if (filled - released >= slots) home.check.finding("slot filled before it is released", site, name, filled % slots);
    each(filled, [](tf_cell& cell) { cell.ring = 1, cell.written = false; });
  }
  // The consumers' wait orders the producers' writes before all reads.
  void full() {
    each(filled, [](tf_cell& cell) { cell.ring = 2, cell.pending = 0, cell.write.kind = 0; });
    ++filled;
  }
  void use() {
    if (used >= filled) home.check.finding("slot used before it is full", site, name, used % slots);
    each(used, [](tf_cell& cell) { cell.ring = 3; });
  }
  void leave() { ++used; }
  // Slots but the `held` latest ones become empty: the producers' wait orders all accesses before their next writes. Copies write behind a
  // fence of the thread that stored an element.
  void release(int held) {
    for (; used - released > held; ++released) {
      for (const tile& t : tiles) {
        const long long first = t.first + released % slots * t.bytes;
        if (home.read_by_product(first, first + t.bytes - 1))
          home.check.finding("slot released while a product in flight reads it", site, name, released % slots);
      }
      each(released, [&](tf_cell& cell) {
        if (cell.write.kind && cell.stamp > home.fenced[cell.write.thread])
          home.check.finding("slot released with elements that a thread stored without a fence", site, name, released % slots, &cell.write);
        cell.ring = 2, cell.read.kind = cell.other_read.kind = cell.write.kind = 0;
      });
    }
  }
  // The next warpgroup passes over the slots that this one has used, and cannot release them.
  void settled() {
    if (used != released) home.check.finding("slots that a warpgroup still holds at the end of its turn", site, name, used - released);
  }
  void finish() {
    if (used != filled) home.check.finding("filled slots that are never used", site, name, filled - used);
    for (unsigned n = 0; n < home.check.issued.size(); ++n)
      if (home.check.issued[n] != home.check.finished[n]) {
        home.check.finding("product in flight at the end of its pipeline", site, name, n);
        home.check.finished[n] = home.check.issued[n];
      }
    for (int slot = 0; slot < slots; ++slot) each(slot, [](tf_cell& cell) { cell.ring = 0; });
  }
};
