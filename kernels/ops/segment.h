#pragma once

namespace augur::kernels {

// Consecutive rows of a step that belong to one sequence.
struct Segment {
  int first_row = 0;
  int num_rows = 0;
  int first_position = 0;  // absolute position in the sequence of first_row's token
};

}  // namespace augur::kernels
