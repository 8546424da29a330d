"""Programs that run anywhere: a compiled program written as C++ with its weights, built and run without Python, torch or tilefuse."""
