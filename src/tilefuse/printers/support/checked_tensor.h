// Copies of boxes of tensors in the checking mode. A copy is in flight until a wait on its barrier, a store until its thread has waited.

//@ tf_checked_view
// The tensor of a map lies within its buffer.
template <class T, int RANK> void tf_checked_view(tf_checker& check, const tf_tensor_view<RANK>& view, tf_global<T>& memory, int site) {
  long long last = view.first;
  for (int d = 0; d < RANK; ++d) {
    last += (view.extents[d] - 1) * view.strides[d];
    if (view.extents[d] < 1) return check.finding("tensor map of an empty tensor", site, memory.name, d);
  }
  if (last >= memory.size) check.finding("tensor map reaches outside its buffer", site, memory.name, last);
}

//@ tf_box_inside
template <class T> bool tf_box_inside(tf_shared<T>& shared, long long at, long long elements, int alignment, int site) {
  if ((shared.offset + at * (long long)sizeof(T)) % alignment)
    shared.home.check.finding("box of a tensor in shared memory that is not aligned", site, shared.name, at);
  return shared.inside(at, site) && shared.inside(at + elements - 1, site);
}

//@ tf_unfenced
// Whether a thread of this block has stored an element and executed no fence since.
template <class T> bool tf_unfenced(tf_shared<T>& shared, long long index) {
  const tf_cell& cell = *shared.cells(index);
  const bool is_own = cell.write.kind && cell.write.thread >= 0 && cell.write.rank == shared.home.check.rank;
  return is_own && cell.stamp > shared.home.fenced[cell.write.thread];
}

//@ tf_tensor_copy_checked
// `sources` is how many such boxes this block waits for: one from each block of the mask, of which this call is `own` block's. Barrier -1
// stands for the slot of a ring, which waits for the copies of its filling.
template <class T, int RANK>
void tf_tensor_copy_checked(tf_shared<T> shared, long long index, tf_global<T>& memory, const tf_tensor_view<RANK>& view,
                            const long long (&at)[RANK], int barrier, bool arrive, int sources, bool own, int alignment, int thread, int site) {
  tf_shared_memory& home = shared.home;
  tf_checker& check = home.check;
  check.thread = thread;
  long long elements = 1;
  for (int d = 0; d < RANK; ++d) elements *= view.box[d];
  if (barrier < -1 || barrier >= (int)home.arrived.size()) return check.finding("no such transaction barrier", site, "barrier", barrier);
  // The blocks of a cluster meet at the start of a pipeline.
  if (!own && barrier >= 0 && !check.cluster_epoch)
    check.finding("shared memory of another block used before the first cluster barrier", site, shared.name, 0);
  if (barrier >= 0) {
    if (own) home.due[barrier] += sources * elements;
    home.due[barrier] -= elements;
    if (own && arrive) ++home.arrived[barrier];
  }
  if (!tf_box_inside(shared, index, elements, alignment, site)) return;
  tf_each_of_box(view, at, [&](long long n, long long place) {
    if (tf_unfenced(shared, index + n))
      check.finding("copy engine overwrites what a thread stored without a fence", site, shared.name, index + n, &shared.cells(index + n)->write);
    shared.store(index + n, place < 0 ? T() : memory.load(place, site), site);
    for (int part = 0; part < (int)sizeof(T) / home.granule; ++part) {
      tf_cell& cell = shared.cells(index + n)[part];
      cell.pending = barrier < 0 ? -1 : barrier + 1;
      cell.stamp = 0;
    }
  });
}

//@ tf_tensor_store_checked
template <class T, int RANK>
void tf_tensor_store_checked(tf_global<T>& memory, const tf_tensor_view<RANK>& view, tf_shared<T>& shared, long long index,
                             const long long (&at)[RANK], int alignment, int thread, int site) {
  tf_shared_memory& home = shared.home;
  tf_checker& check = home.check;
  check.thread = thread;
  long long elements = 1;
  for (int d = 0; d < RANK; ++d) elements *= view.box[d];
  if (!tf_box_inside(shared, index, elements, alignment, site)) return;
  const unsigned number = ++home.stores[thread];
  tf_each_of_box(view, at, [&](long long n, long long place) {
    // Elements outside the tensor are read but go nowhere: whether a thread has written them does not matter.
    if (place >= 0) {
      if (tf_unfenced(shared, index + n))
        check.finding("tensor store of what a thread stored without a fence", site, shared.name, index + n, &shared.cells(index + n)->write);
      memory.store(place, shared.load(index + n, site), site);
    }
    for (int part = 0; part < (int)sizeof(T) / home.granule; ++part) {
      tf_cell* const cell = shared.cells(index + n) + part;
      ++cell->stored;
      home.begin_flight(home.storing, cell - home.cells.data(), number);
    }
  });
}
