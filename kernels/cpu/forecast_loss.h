// The loss of one (row, kv head) of a Forecast head and its gradient (ops/forecast_loss.h says what
// they are).
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
#include "kernels/ops/forecast_loss.h"

namespace augur::kernels {

// The `wanted` best candidates, ascending, by the largest score of windows 4 b - 1 to 4 b + 3; ties
// to the lower block. All of them where they are no more than that. scores: of the complete
// windows. `blocks` is overwritten.
void ChooseFreeBlocks(std::span<const float> scores, const FreeBlocks& free,
                      std::vector<int32_t>* blocks);

// Windows 4 b to 4 b + 3 of each block, those that are complete.
void WindowsOf(std::span<const int32_t> blocks, int num_windows, std::vector<int32_t>* windows);

namespace loss_terms {

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

}  // namespace loss_terms

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
  using loss_terms::Bucket, loss_terms::DerivativeOf, loss_terms::Raised, loss_terms::TermOf;
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

}  // namespace augur::kernels
