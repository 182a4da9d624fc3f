#include "planner/larger_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "planner/arguments.h"
#include "planner/frugal.h"
#include "planner/rehearsed_options.h"

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
      // Nobody puts a laptop's card into their machine.
      if (computes_in(gpu, request.job.precision) && !gpu.name.ends_with("-laptop")) {
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
int64_t least_on(const TargetCard& card, const PlanRequest& request, const Plan& plan, int64_t limit_bytes) {
  const RehearsalDetail& detail = plan.detail;
  RehearsedOptions rehearsed(request.job, card, request.workload, limit_bytes);
  const auto frugal = frugal_choices(request.fixed, request.workload, {detail.vision_blocks, detail.language_blocks});
  const auto least = least_reserved(rehearsed, request.job, request.workload, frugal, limit_bytes,
                                    std::numeric_limits<double>::infinity());
  return least.value_or(std::numeric_limits<int64_t>::max());
}

Suggestion on(const Candidate& candidate, int64_t reserved_bytes, const MemoryLimit& limit,
              const PlanRequest& request) {
  const CommandWords& words = request.words;
  Suggestion suggestion{.arguments = {},
                        .note = "a larger card",
                        .makes_it_fit = true,
                        .total_bytes = reserved_bytes + limit.context_bytes + limit.communication_bytes};
  if (words.card.empty()) {
    suggestion.note = fmt::format("a card of {} GB or more", candidate.name);
    if (request.limit_gigabytes) suggestion.note += ", with memory.limit_gb=auto";
  } else {
    suggestion.arguments = words_of(words.card, candidate.name);
    if (request.limit_gigabytes) suggestion.arguments.emplace_back("memory.limit_gb=auto");
  }
  return suggestion;
}

}  // namespace

std::optional<Suggestion> larger_card(const PlanRequest& request, const Plan& plan) {
  int rehearsed = 0;
  for (const auto& candidate : known_cards(request)) {
    const auto limit = limit_of(candidate.card, request.mode, std::nullopt, request.workload.world_size);
    if (candidate.card.memory_bytes <= request.card.memory_bytes ||
        limit.limit_bytes < plan.chosen.peaks.reserved_bytes ||
        !computes_in(*candidate.card.gpu, request.job.precision)) {
      continue;
    }
    const int64_t bytes = least_on(candidate.card, request, plan, limit.limit_bytes);
    if (bytes <= limit.limit_bytes) return on(candidate, bytes, limit, request);
    if (++rehearsed == kMostCards) break;
  }
  return std::nullopt;
}

}  // namespace vlmtrain::planner
