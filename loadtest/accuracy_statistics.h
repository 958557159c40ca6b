// How sure a share of right answers is, and a difference of two shares on the same questions.
//
// Both intervals take questions as independent. Questions of one document share its filler, so the
// truth is somewhat wider; more documents help more than more questions.
//
// Thread: plain functions. Units: shares from 0 to 1, differences from -1 to 1. Failure: none; no
// questions give the widest interval.
#pragma once

#include <cstdint>
#include <vector>

namespace augur::loadtest {

struct Interval {
  double low = 0;
  double high = 0;
};

// The 95 % interval of Wilson's score for `right` of `n`.
Interval WilsonInterval(int64_t right, int64_t n);

struct PairedDifference {
  int64_t n = 0;
  int64_t gained = 0;     // right here and wrong in the baseline
  int64_t lost = 0;       // wrong here and right in the baseline
  double difference = 0;  // (gained - lost) / n
  // 95 %, normal on paired differences as Agresti and Min (2005) adjust it: half a question is
  // added to each cell of the 2 x 2 table, so that no disagreement does not mean no uncertainty.
  Interval interval;
};

// The vectors are of equal size: question i of both is the same question.
PairedDifference ComparePaired(const std::vector<bool>& here, const std::vector<bool>& baseline);

// The middle value, the mean of the two middle ones; 0 for none.
double Median(std::vector<double> values);

}  // namespace augur::loadtest
