// The loss of one (row, kv head) of a Forecast head and its gradient (SparDA Sec. 4.2, Eq. 7, as
// the released training code computes it).
//
// The teacher (kernels/cpu/forecast_teacher.h) picks the blocks it would read beyond the forced
// ones; each is the four windows 4 b to 4 b + 3. Those windows stand for themselves, all others
// together are the rest bucket: rest = 1 - kept, on both sides. Values below 1e-8 are raised to it,
// both sides are divided by their sums, and the loss is KL(teacher || student). The student is the
// softmax over all complete windows of the Forecast's products.
//
// Pure functions; nothing here allocates. Real is float in training and double where gradients are
// checked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "kernels/ops/select_blocks.h"

namespace augur::engine {

inline constexpr double kLossFloor = 1e-8;

// Blocks that a budget leaves to the scores at one position.
struct FreeBlocks {
  int begin = 0;  // candidates are [begin, end)
  int end = 0;
  int wanted = 0;  // how many of them are chosen
  int candidates() const { return end > begin ? end - begin : 0; }
  bool is_choice() const { return candidates() > wanted; }
};
FreeBlocks FreeBlocksAt(int position, const kernels::SelectionBudget& budget);

// The `wanted` best candidates, ascending, by the largest score of windows 4 b - 1 to 4 b + 3; ties
// to the lower block. All of them where they are no more than that. scores: of the complete
// windows. `blocks` is overwritten.
void ChooseFreeBlocks(std::span<const float> scores, const FreeBlocks& free,
                      std::vector<int32_t>* blocks);

// Windows 4 b to 4 b + 3 of each block, those that are complete.
void WindowsOf(std::span<const int32_t> blocks, int num_windows, std::vector<int32_t>* windows);

namespace forecast_loss {

// A bucket's term of KL and the derivative of the whole KL by the student's share: -t / (zt p) +
// 1 / zp, or 0 where the floor holds p.
template <class Real>
struct Bucket {
  Real teacher = 0;
  Real student = 0;
};

template <class Real>
Real Raised(Real share) {
  return std::max(share, static_cast<Real>(kLossFloor));
}

template <class Real>
Real DerivativeOf(const Bucket<Real>& bucket, Real teacher_sum, Real student_sum) {
  if (bucket.student <= static_cast<Real>(kLossFloor)) return 0;
  return 1 / student_sum - Raised(bucket.teacher) / (teacher_sum * bucket.student);
}

template <class Real>
Real TermOf(const Bucket<Real>& bucket, Real teacher_sum, Real student_sum) {
  const Real t = Raised(bucket.teacher) / teacher_sum;
  const Real p = Raised(bucket.student) / student_sum;
  return t * std::log(t / p);
}

}  // namespace forecast_loss

// shares[j] = softmax of products.
template <class Real>
void Softmax(std::span<const Real> products, std::span<Real> shares) {
  const Real largest = *std::max_element(products.begin(), products.end());
  Real sum = 0;
  for (size_t j = 0; j < products.size(); ++j) sum += shares[j] = std::exp(products[j] - largest);
  for (Real& share : shares) share /= sum;
}

// teacher, student: [windows], of sum 1. kept: ascending windows, at least one. Gives the loss;
// gradient [windows]: of the loss by the student's products.
template <class Real>
Real PartitionedKl(std::span<const Real> teacher, std::span<const Real> student,
                   std::span<const int32_t> kept, std::span<Real> gradient) {
  using forecast_loss::Bucket, forecast_loss::DerivativeOf, forecast_loss::Raised,
      forecast_loss::TermOf;
  AUGUR_CHECK(!kept.empty() && teacher.size() == student.size());
  Bucket<Real> rest{1, 1};
  for (const int32_t j : kept) rest = {rest.teacher - teacher[j], rest.student - student[j]};
  Real teacher_sum = Raised(rest.teacher), student_sum = Raised(rest.student);
  for (const int32_t j : kept) {
    teacher_sum += Raised(teacher[j]);
    student_sum += Raised(student[j]);
  }
  Real loss = TermOf(rest, teacher_sum, student_sum);
  const Real of_rest = DerivativeOf(rest, teacher_sum, student_sum);
  std::fill(gradient.begin(), gradient.end(), of_rest);
  for (const int32_t j : kept) {
    const Bucket<Real> bucket{teacher[j], student[j]};
    loss += TermOf(bucket, teacher_sum, student_sum);
    gradient[j] = DerivativeOf(bucket, teacher_sum, student_sum);
  }
  // Through the softmax.
  Real mean = 0;
  for (size_t j = 0; j < student.size(); ++j) mean += student[j] * gradient[j];
  for (size_t j = 0; j < student.size(); ++j) gradient[j] = student[j] * (gradient[j] - mean);
  return loss;
}

}  // namespace augur::engine
