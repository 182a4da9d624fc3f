#include "planner/sample_remedy.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/arguments.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::planner {

namespace {

constexpr int kMostNumbers = 4;
/// Share of the way between a number that fits and one that does not at which the search ends.
constexpr double kNearEnough = 0.04;
/// Below the number that a straight line says, since what it passes through are peaks of changing places.
constexpr double kCaution = 0.97;
constexpr int kMostRetreats = 3;
constexpr double kRetreat = 0.85;

/// A number of a limit and what is taken with it.
struct Point {
  int64_t number = 0;
  int64_t bytes = 0;
};

class LimitSearch {
 public:
  LimitSearch(const SampleLimit& limit, const Job& job, const FixedChoices& fixed, RemedyRehearsal& rehearsal)
      : limit_(limit), job_(job), fixed_(fixed), rehearsal_(rehearsal), least_(limit.least()) {}

  std::optional<Suggestion> find(int64_t without_bytes) {
    if (limit_.now <= least_) return std::nullopt;
    auto lowest = try_number(least_, /*all=*/false);
    if (!lowest || !rehearsal_.fits(lowest->bytes)) return std::nullopt;
    Point fitting = *lowest;
    Point failing{limit_.now, without_bytes};
    for (int guess = 0; guess < kMostNumbers; ++guess) {
      const int64_t number = between(fitting, failing);
      if (number <= fitting.number || number >= failing.number) break;
      const auto point = try_number(number, /*all=*/false);
      if (!point) break;
      (rehearsal_.fits(point->bytes) ? fitting : failing) = *point;
      const auto way = static_cast<double>(failing.number - fitting.number);
      if (way <= kNearEnough * static_cast<double>(failing.number)) break;
    }
    return proven(fitting.number);
  }

 private:
  int64_t whole(int64_t number) const { return std::max(least_, number / limit_.unit * limit_.unit); }

  std::optional<Point> try_number(int64_t number, bool all) {
    auto limited = limit_.measure(number, all);
    if (!limited || 2 * limited->left_out > limited->samples) return std::nullopt;
    left_out_ = limited->left_out;
    samples_ = limited->samples;
    const auto bytes = rehearsal_.least_bytes(job_, limited->workload, fixed_);
    if (!bytes) return std::nullopt;
    return Point{number, *bytes};
  }

  /// Where a straight line meets the limit; at least a tenth of the way.
  int64_t between(const Point& fitting, const Point& failing) const {
    const double way = static_cast<double>(failing.number - fitting.number);
    const double rise = static_cast<double>(failing.bytes - fitting.bytes);
    const double room = static_cast<double>(rehearsal_.limit_bytes() - fitting.bytes);
    const double share = rise > 0 ? std::clamp(kCaution * room / rise, 0.1, 0.9) : 0.5;
    return whole(fitting.number + static_cast<int64_t>(way * share));
  }

  /// With all samples measured, which may need a little more than the largest of before.
  std::optional<Suggestion> proven(int64_t number) {
    for (int retreat = 0; retreat < kMostRetreats; ++retreat) {
      const auto point = try_number(number, /*all=*/true);
      if (!point) return std::nullopt;
      if (rehearsal_.fits(point->bytes)) return suggestion(*point);
      if (number == least_) break;
      number = whole(static_cast<int64_t>(kRetreat * static_cast<double>(number)));
    }
    return std::nullopt;
  }

  Suggestion suggestion(const Point& point) const {
    std::string note = limit_.meaning;
    if (left_out_ > 0)
      note += fmt::format(", which leaves out {} of {} samples", grouped(left_out_), grouped(samples_));
    return {.arguments = words_of(limit_.form, point.number),
            .note = std::move(note),
            .makes_it_fit = true,
            .total_bytes = rehearsal_.total_bytes(point.bytes)};
  }

  const SampleLimit& limit_;
  const Job& job_;
  const FixedChoices& fixed_;
  RemedyRehearsal& rehearsal_;
  int64_t least_;
  int64_t left_out_ = 0;  // with the number that was tried last
  int64_t samples_ = 0;
};

}  // namespace

std::optional<Suggestion> lower(const SampleLimit& limit, const Job& job, const FixedChoices& fixed,
                                int64_t without_bytes, RemedyRehearsal& rehearsal) {
  return LimitSearch(limit, job, fixed, rehearsal).find(without_bytes);
}

}  // namespace vlmtrain::planner
