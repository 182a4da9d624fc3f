#include "train/run_ranks.h"

#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/host_name.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_behind.h"
#include "vlmtrain/io/unfinished.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::train {

namespace {

/// That a checkpoint which is being written is waited for where a rank is lost: it is worth more than the minutes that
/// all ranks' machines do nothing, but a file system may be lost, too. What is cut off has its temporary name only.
constexpr auto kLongestWrite = std::chrono::minutes(5);

/// While it waits in a call of a library, for a rank that will not come.
[[noreturn]] void leave(const distributed::Failure& failure) {
  [[maybe_unused]] const auto nobody_writes = io::remove_unfinished();
  spdlog::error("{}; this rank ends with it", failure.text());
  spdlog::shutdown();
  _exit(static_cast<int>(failure.code));
}

constexpr char kStops = 's', kGoesOn = 'g';
constexpr const char* kRanksOfANode = "VLMTRAIN_RANKS_OF_A_NODE";

}  // namespace

RunRanks::RunRanks(const std::optional<distributed::Launch>& launch, std::chrono::milliseconds to_meet) {
  if (!launch) {
    consensus_ = std::make_unique<engine::Consensus>();
    return;
  }
  ranks_ = std::make_unique<distributed::Ranks>(
      *launch, distributed::RanksSettings{.to_meet = to_meet, .on_stuck = [this](const distributed::Failure& failure) {
                                            writing_.close(kLongestWrite);
                                            leave(failure);
                                          }});
  consensus_ = std::make_unique<distributed::RankConsensus>(ranks_->collectives());
  if (writes()) {
    spdlog::info("{} ranks, started by {}, meet at {}:{}", launch->world_size, launch->launcher, launch->host,
                 launch->port);
  }
  const std::string own = host_name();
  hosts_ = consensus_->each(own);
  on_this_machine_ = std::ranges::count(hosts_, own);
  machines_ = std::ssize(std::set<std::string>(hosts_.begin(), hosts_.end()));
}

int64_t RunRanks::ranks_of_a_node() const {
  if (is_alone()) return 1;
  if (const char* const given = std::getenv(kRanksOfANode)) {
    const int64_t count = number_behind("", given).value_or(0);
    if (count > 0 && world_size() % count == 0) return count;
    throw usage_error("{}={} does not divide {} ranks", kRanksOfANode, given, world_size());
  }
  const int64_t count =
      std::ranges::find_if(hosts_, [this](const auto& host) { return host != hosts_.front(); }) - hosts_.begin();
  for (int64_t rank = 0; rank < world_size(); ++rank) {
    const auto& first = hosts_[static_cast<size_t>(rank / count * count)];
    const bool is_there = hosts_[static_cast<size_t>(rank)] == first;
    const bool is_apart = rank == 0 || rank % count != 0 || hosts_[static_cast<size_t>(rank - 1)] != first;
    if (is_there && is_apart && world_size() % count == 0) continue;
    throw usage_error(
        "distributed.sharding=hybrid shares the weights among the ranks of a machine, so each needs as many, numbered "
        "consecutively; {} has {} of {} ranks, and rank {} is on {}; start as many on each, or choose full",
        hosts_.front(), std::ranges::count(hosts_, hosts_.front()), world_size(), rank,
        hosts_[static_cast<size_t>(rank)]);
  }
  return count;
}

void RunRanks::share_in_groups_of(int64_t count) const {
  if (!is_alone()) ranks_->share_in_groups_of(count);
}

data::LoaderShare RunRanks::loader_share() const {
  if (is_alone()) return {};
  return {.rank = ranks_->rank(), .world_size = ranks_->world_size(), .each = [this](const std::string& own) {
            return consensus_->each(own);
          }};
}

void RunRanks::in_turn(const std::function<void()>& act) const {
  if (writes()) act();
  if (is_alone()) return;
  consensus_->each("");
  if (!writes()) act();
}

void RunRanks::connect(at::Device device) const {
  if (is_alone()) return;
  check_same("kind of device", std::string(c10::DeviceTypeName(device.type(), /*lower_case=*/true)));
  if (device.is_cpu()) return;
  if (!planner::on_virtual_card()) refuse_shared_card(fmt::format("{} of {}", memory::bus_id(device), host_name()));
  ranks_->connect(device);
}

void RunRanks::refuse_shared_card(const std::string& own) const {
  std::map<std::string, std::vector<size_t>> ranks_of_card;
  const auto cards = consensus_->each(own);
  for (size_t rank = 0; rank < cards.size(); ++rank) ranks_of_card[cards[rank]].push_back(rank);
  for (const auto& [card, ranks] : ranks_of_card) {
    if (ranks.size() == 1) continue;
    throw usage_error(
        "ranks {} have the same card, {}; start one rank for each GPU of a machine, and let each see its own",
        fmt::join(ranks, ", "), card);
  }
}

void RunRanks::check_same(const std::string& what, const std::string& own) const {
  if (is_alone()) return;
  const auto all = consensus_->each(own);
  std::vector<size_t> others;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all.front()) others.push_back(rank);
  }
  if (others.empty()) return;
  throw usage_error("{} another {} than rank 0 ({}, not {}); give all ranks the same",
                    others.size() == 1 ? fmt::format("rank {} has", others.front())
                                       : fmt::format("ranks {} have", fmt::join(others, ", ")),
                    what, all[others.front()], all.front());
}

bool RunRanks::any_stops(bool own) const {
  if (is_alone()) return own;
  const auto all =
      consensus_->each(fmt::format("{}{}", own ? kStops : kGoesOn, ranks_->collectives().waited_seconds()));
  waited_seconds_.clear();
  for (const auto& text : all) waited_seconds_.push_back(std::stod(text.substr(1)));
  return std::ranges::any_of(all, [](const std::string& text) { return text.front() == kStops; });
}

std::string RunRanks::waiting_words() const {
  if (waited_seconds_.empty()) return {};
  const auto [least, most] = std::ranges::minmax_element(waited_seconds_);
  if (*most == 0) return {};  // on virtual cards
  return fmt::format("; rank {} was waited for most: it waited {:.1f} s for the others, rank {} {:.1f} s",
                     least - waited_seconds_.begin(), *least, most - waited_seconds_.begin(), *most);
}

std::string RunRanks::traffic_words(int64_t steps) const {
  if (is_alone() || steps == 0) return {};
  const auto a_step = [steps](const distributed::Traffic& traffic, const char* calls) {
    return fmt::format("{} in {:.1f} {} a step", format_bytes(traffic.bytes / steps),
                       static_cast<double>(traffic.calls) / static_cast<double>(steps), calls);
  };
  const auto& ranks = ranks_->collectives();
  std::string words = "ranks added up " + a_step(ranks.summed(), "sums");
  if (ranks.gathered().calls > 0) {
    words += fmt::format(", {}, and gathered weights of {}", a_step(ranks.summed_in_parts(), "reduce-scatters"),
                         a_step(ranks.gathered(), "all-gathers"));
  }
  return words;
}

bool RunRanks::are_sums_done() const {
  constexpr auto kPatience = std::chrono::seconds(2);
  return is_alone() || ranks_->collectives().are_sums_done(kPatience);
}

void RunRanks::telling_failures(const std::function<void()>& act) const {
  if (is_alone()) return act();
  try {
    act();
    consensus_->each("");  // rank 0 may save for longer than the others
  } catch (const UserError& error) {
    ranks_->fail(error.code(), error.what());
    // The device would be waited for on the way out.
    if (!are_sums_done()) leave({.rank = rank(), .code = error.code(), .reason = error.what()});
    if (writes()) throw;
    spdlog::error("{}", error.what());
    if (ranks_->has_lost_first()) throw;
    throw SaidElsewhere(error.code(), error.what());  // rank 0 ends with the same words
  } catch (const std::exception& error) {
    ranks_->fail(ExitCode::kFailed, first_line(error.what()));
    throw;
  }
}

}  // namespace vlmtrain::train
