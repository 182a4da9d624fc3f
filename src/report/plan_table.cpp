#include "report/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "report/plan_words.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::report {

namespace {

struct Cells {
  std::string mark, micro_batch, recomputed, memory, step, tokens_per_second, fits;
};

constexpr int kWidestRow = 74;

std::string row(const Cells& cells, int columns) {
  const std::string speed = columns < kWidestRow ? "" : fmt::format(" {:>9}", cells.tokens_per_second);
  return fmt::format("{:1} {:<11} {:<24} {:>9} {:>8}{}  {}", cells.mark, cells.micro_batch, cells.recomputed,
                     cells.memory, cells.step, speed, cells.fits);
}

/// The alternatives, and the chosen plan among them where it is none: with smaller passes, for example.
std::vector<planner::Option> with_chosen(const planner::Plan& plan) {
  std::vector<planner::Option> options = plan.alternatives;
  const auto is_chosen = [&](const planner::Option& option) { return option.choices == plan.chosen.choices; };
  if (std::any_of(options.begin(), options.end(), is_chosen)) return options;
  const auto place = std::find_if(options.begin(), options.end(), [&](const planner::Option& option) {
    return option.choices.micro_batch_size >= plan.chosen.choices.micro_batch_size;
  });
  options.insert(place, plan.chosen);
  return options;
}

/// The places of the options to show, ascending.
std::vector<size_t> shown_options(const std::vector<planner::Option>& options, const planner::Choices& chosen,
                                  size_t most) {
  const auto distance = [&](size_t place) {
    const auto& choices = options[place].choices;
    const auto ratio = static_cast<double>(choices.micro_batch_size) / static_cast<double>(chosen.micro_batch_size);
    return std::tuple(choices != chosen, std::abs(std::log(ratio)));
  };
  std::vector<size_t> places(options.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::stable_sort(places.begin(), places.end(),
                   [&](size_t left, size_t right) { return distance(left) < distance(right); });
  places.resize(std::min(places.size(), most));
  std::sort(places.begin(), places.end());
  return places;
}

Cells cells_of(const planner::Option& option, const planner::Plan& plan) {
  const char* const about = option.rehearsed ? "" : "~";
  const int64_t size = option.choices.micro_batch_size;
  return {.mark = option.choices == plan.chosen.choices ? ">" : "",
          .micro_batch = fmt::format("{} x {}", size, plan.workload.samples_per_rank() / size),
          .recomputed = recompute_words(option.choices.recompute, plan.detail),
          .memory = fmt::format("{}{}", about, gigabytes(plan.total_bytes(option))),
          .step = fmt::format("{}{}", about, seconds_words(option.step_seconds)),
          .tokens_per_second = fmt::format("{}{}", about, grouped(std::llround(option.tokens_per_second))),
          .fits = option.fits ? "yes" : "no"};
}

/// What sets the chosen plan apart from the others, which have the passes of the first.
std::string smaller_passes(const std::vector<planner::Option>& options, const planner::Plan& plan) {
  const planner::Choices& chosen = plan.chosen.choices;
  const auto differs = [&](const planner::Option& option) {
    return option.choices.vision_tiles_per_pass != chosen.vision_tiles_per_pass ||
           option.choices.loss_chunk_rows != chosen.loss_chunk_rows;
  };
  if (std::none_of(options.begin(), options.end(), differs)) return {};
  return fmt::format("{} and loss chunks of {}", vision_pass_words(plan), counted(chosen.loss_chunk_rows, "row"));
}

}  // namespace

AlternativesTable alternatives_table(const planner::Plan& plan, size_t most, int columns) {
  const auto options = with_chosen(plan);
  const Cells header{"", "micro-batch", "blocks recomputed", "memory", "step", "tokens/s", "fits"};
  AlternativesTable table{
      .header = row(header, columns), .lines = {}, .left_out = 0, .chosen_differs = smaller_passes(options, plan)};
  for (const size_t place : shown_options(options, plan.chosen.choices, most)) {
    const planner::Option& option = options[place];
    table.lines.push_back(
        {row(cells_of(option, plan), columns), option.choices == plan.chosen.choices, option.fits, option.rehearsed});
  }
  table.left_out = options.size() - table.lines.size();
  return table;
}

}  // namespace vlmtrain::report
