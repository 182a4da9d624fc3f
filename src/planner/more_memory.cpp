#include "planner/more_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "planner/arguments.h"
#include "planner/frugal.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

/// Sizes that cards are sold with, in gigabytes.
constexpr std::array kSizes{4.0,  6.0,  8.0,  10.0, 11.0, 12.0, 16.0, 20.0, 22.0,  24.0,  32.0,
                            40.0, 44.0, 48.0, 64.0, 72.0, 80.0, 94.0, 96.0, 141.0, 180.0, 192.0};
/// Cards that are rehearsed: another architecture may need a little more.
constexpr int kMostCards = 3;

struct Candidate {
  std::string name;  ///< as it is typed
  TargetCard card;
};

std::vector<Candidate> known_cards(const PlanRequest& request) {
  std::vector<Candidate> list;
  if (request.words.card_by_size || request.words.card.empty()) {
    for (const double size : kSizes) list.push_back({fmt::format("{:g}", size), card_of_size(size)});
  } else {
    for (const auto& gpu : memory::gpus()) {
      if (computes_in(gpu, request.job.precision)) {
        list.push_back({std::string(gpu.name), card_by_name(std::string(gpu.name))});
      }
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const Candidate& left, const Candidate& right) {
    return left.card.memory_bytes < right.card.memory_bytes;
  });
  return list;
}

/// The least that the plan reserves on another card.
int64_t least_on(const TargetCard& card, const Trial& trial, int64_t limit_bytes) {
  const PlanRequest& request = trial.request();
  const RehearsalDetail& detail = trial.plan().detail;
  Tried tried(request.job, card, request.workload, limit_bytes);
  std::optional<int64_t> least;
  for (const Choices& choices :
       frugal_choices(request.fixed, request.workload, {detail.vision_blocks, detail.language_blocks})) {
    const auto bytes = tried.reserved_bytes(request.job, choices, request.workload.candidates);
    if (bytes && (!least || *bytes < *least)) least = bytes;
    if (least && *least <= limit_bytes) break;
  }
  return least.value_or(std::numeric_limits<int64_t>::max());
}

Suggestion on(const Candidate& candidate, int64_t reserved_bytes, const MemoryLimit& limit, const Trial& trial) {
  const CommandWords& words = trial.request().words;
  Suggestion suggestion{.arguments = {},
                        .note = "a larger card",
                        .makes_it_fit = true,
                        .total_bytes = reserved_bytes + limit.context_bytes + limit.communication_bytes};
  if (words.card.empty()) {
    suggestion.note = fmt::format("a card of {} GB or more", candidate.name);
  } else {
    suggestion.arguments = words_of(words.card, candidate.name);
    if (trial.request().limit_gigabytes) suggestion.arguments.emplace_back("memory.limit_gb=auto");
  }
  return suggestion;
}

}  // namespace

std::vector<Suggestion> more_of_the_card(const Trial& trial) {
  const PlanRequest& request = trial.request();
  const int64_t needed = trial.plan().chosen.peaks.reserved_bytes;
  const auto limit_with = [&](Mode mode, std::optional<double> gigabytes) {
    return limit_of(request.card, mode, gigabytes, request.workload.world_size);
  };
  std::vector<Suggestion> list;
  const auto add = [&](std::string argument, std::string note) {
    list.push_back({.arguments = {std::move(argument)},
                    .note = std::move(note),
                    .makes_it_fit = true,
                    .total_bytes = needed + trial.plan().beside_bytes()});
  };
  const auto least_margin = limit_with(Mode::kAggressive, request.limit_gigabytes);
  if (needed <= least_margin.limit_bytes) {
    add("memory.mode=aggressive", fmt::format("keeps {:g} % of the card free instead of {:g} %",
                                              least_margin.margin_percent, trial.plan().limit.margin_percent));
  }
  if (!request.limit_gigabytes) return list;
  constexpr int64_t kTenths = 10;
  const auto most = static_cast<int64_t>(in_gigabytes(request.card.memory_bytes) * kTenths);
  for (auto tenths = static_cast<int64_t>(*request.limit_gigabytes * kTenths) + 1; tenths <= most; ++tenths) {
    const double gigabytes = static_cast<double>(tenths) / kTenths;
    if (limit_with(request.mode, gigabytes).limit_bytes < needed) continue;
    add(fmt::format("memory.limit_gb={:.1f}", gigabytes), "lets the run take more of the card");
    break;
  }
  return list;
}

std::optional<Suggestion> larger_card(const Trial& trial) {
  const PlanRequest& request = trial.request();
  int rehearsed = 0;
  for (const auto& candidate : known_cards(request)) {
    const auto limit = limit_of(candidate.card, request.mode, std::nullopt, request.workload.world_size);
    if (candidate.card.memory_bytes <= request.card.memory_bytes ||
        limit.limit_bytes < trial.plan().chosen.peaks.reserved_bytes ||
        !computes_in(*candidate.card.gpu, request.job.precision)) {
      continue;
    }
    const int64_t bytes = least_on(candidate.card, trial, limit.limit_bytes);
    if (bytes <= limit.limit_bytes) return on(candidate, bytes, limit, trial);
    if (++rehearsed == kMostCards) break;
  }
  return std::nullopt;
}

}  // namespace vlmtrain::planner
