/// LibTorch's vector functions, the same on every thread from the first call on.
#pragma once

namespace tutti::detail {

/// Lets LibTorch choose the kernels of its vector functions (sqrt, sin, exp, ...) for this machine.
/// To be called before several threads compute; only the first call in a process does something.
///
/// With MKL the first call of one chooses for all, and without a lock: it stores the number of the
/// processor, and then, in place of it, the row of the table of kernels. A thread that reads in
/// between takes another processor's kernel of low accuracy: its sqrt is off by 2e-4, once in a
/// process, in one run of thousands.
///
/// Thread rule: any thread.
void settle_vector_math();

}  // namespace tutti::detail
