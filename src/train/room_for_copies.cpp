#include "train/room_for_copies.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vlmtrain/planner/limit.h"

namespace vlmtrain::train {

memory::HostRoom room_for_copies(const HostFigures& figures, double margin_percent) {
  const auto margin = std::llround(static_cast<double>(figures.room.bytes) * margin_percent / 100);
  const int64_t growth = figures.ranks * std::max<int64_t>(0, figures.planned_bytes - figures.own_bytes);
  const int64_t free = figures.room.bytes - figures.own_bytes - margin - growth;
  memory::HostRoom room;
  room.bytes = std::max<int64_t>(0, std::min(free, figures.plan_leaves_bytes));
  room.bound = free <= figures.plan_leaves_bytes ? figures.room.bound : "the run's limit (plan.json)";
  return room;
}

memory::HostRoom room_for_copies(const HostRun* host, planner::Mode mode, int64_t ranks) {
  HostFigures figures;
  figures.room = memory::host_room();
  figures.own_bytes = memory::host_bytes();
  figures.ranks = ranks;
  figures.plan_leaves_bytes = std::numeric_limits<int64_t>::max();
  if (host != nullptr) {
    figures.planned_bytes = host->planned_bytes();
    figures.plan_leaves_bytes = host->left_bytes();
  }
  return room_for_copies(figures, planner::margin_percent(mode));
}

}  // namespace vlmtrain::train
