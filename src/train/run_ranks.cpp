#include "train/run_ranks.h"

#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/host_name.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/unfinished.h"

namespace vlmtrain::train {

namespace {

/// While it waits in a call of a library, for a rank that will not come.
[[noreturn]] void leave(const distributed::Failure& failure) {
  [[maybe_unused]] const auto nobody_writes = io::remove_unfinished();
  spdlog::error("{}; this rank ends with it", failure.text());
  spdlog::shutdown();
  _exit(static_cast<int>(failure.code));
}

}  // namespace

RunRanks::RunRanks(const std::optional<distributed::Launch>& launch) {
  if (!launch) {
    consensus_ = std::make_unique<engine::Consensus>();
    return;
  }
  ranks_ = std::make_unique<distributed::Ranks>(
      *launch, distributed::RanksSettings{.on_stuck = [this](const distributed::Failure& failure) {
        const auto nothing_is_half_written = while_writing();
        leave(failure);
      }});
  consensus_ = std::make_unique<distributed::RankConsensus>(*ranks_);
  if (writes()) {
    spdlog::info("{} ranks, started by {}, meet at {}:{}", launch->world_size, launch->launcher, launch->host,
                 launch->port);
  }
  const std::string own = host_name();
  on_this_machine_ = std::ranges::count(ranks_->each(own), own);
}

data::LoaderShare RunRanks::loader_share() const {
  if (is_alone()) return {};
  return {.rank = ranks_->rank(), .world_size = ranks_->world_size(), .each = [this](const std::string& own) {
            return ranks_->each(own);
          }};
}

void RunRanks::in_turn(const std::function<void()>& act) const {
  if (writes()) act();
  if (is_alone()) return;
  ranks_->each("");
  if (!writes()) act();
}

void RunRanks::check_same(const std::string& what, const std::string& own) const {
  if (is_alone()) return;
  const auto all = ranks_->each(own);
  std::vector<size_t> others;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all.front()) others.push_back(rank);
  }
  if (others.empty()) return;
  throw usage_error("rank {} has another {} than rank 0 ({}, not {}); give all ranks the same", fmt::join(others, ", "),
                    what, all[others.front()], all.front());
}

std::string RunRanks::traffic_words(int64_t steps) const {
  if (is_alone() || steps == 0) return {};
  const auto& [bytes, calls] = ranks_->traffic();
  return fmt::format("ranks added up {} in {:.1f} sums a step", format_bytes(bytes / steps),
                     static_cast<double>(calls) / static_cast<double>(steps));
}

void RunRanks::telling_failures(const std::function<void()>& act) const {
  if (is_alone()) return act();
  try {
    act();
    ranks_->each("");  // rank 0 may save for longer than the others
  } catch (const UserError& error) {
    ranks_->fail(error.code(), error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    ranks_->fail(ExitCode::kFailed, reason.substr(0, reason.find('\n')));
    throw;
  }
}

}  // namespace vlmtrain::train
