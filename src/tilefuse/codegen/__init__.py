"""Floor 5: kernel IR, and its two printers, CUDA C++ and host C++. Decisions were made earlier, in `schedule`."""
