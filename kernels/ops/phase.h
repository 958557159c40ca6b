#pragma once

namespace augur::kernels {

// Which of a backend's algorithms a call's rows take, where it has one for many rows and one for
// few. A token's phase follows from its position alone (tokens of the prompt: kPrefill, generated
// ones: kDecode), so that its bits do not depend on the company it is computed in. The CPU has one
// algorithm for both.
enum class Phase { kPrefill, kDecode };

}  // namespace augur::kernels
