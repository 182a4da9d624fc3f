#include "train/run_plan.h"

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::train {

namespace {

planner::Plan plan_that_fits(const planner::PlanRequest& request) {
  planner::Plan plan = planner::make_plan(request);
  if (!plan.fits) throw UserError(ExitCode::kDoesNotFit, report::plan_refusal(plan));
  return plan;
}

}  // namespace

RunPlan::RunPlan(const Config& config, at::Device device, const std::vector<io::Record>& records,
                 const models::Processor& processor, std::filesystem::path run_folder)
    : device_(device),
      run_folder_(std::move(run_folder)),
      plan_(plan_that_fits(plan_request(config, planner::card_of_device(memory::describe(device)),
                                        workload_of(records, processor, config)))) {
  write();
  spdlog::info("plan: {}; made in {:.1f} s", report::plan_headline(plan_), plan_.effort.seconds);
  memory::set_expandable_segments(choices().expandable_segments);
  if (config.memory.limit_gb) {
    memory::limit_reserved_bytes(plan_.limit.card_bytes - plan_.limit.context_bytes, plan_.card.memory_bytes);
  }
}

void RunPlan::compare(const memory::DeviceMemory& measured, int64_t steps) const {
  const auto& planned = plan_.chosen.peaks;
  const int64_t retries = memory::allocation_retries(device_);
  const auto card = memory::describe(device_);
  spdlog::info(
      "device memory at most: {:.2f} GB allocated (planned for the worst batch: {:.2f}), {:.2f} GB reserved (planned: "
      "{:.2f}); {} allocations had to be tried again",
      in_gigabytes(measured.allocated_peak_bytes), in_gigabytes(planned.allocated_bytes),
      in_gigabytes(measured.reserved_peak_bytes), in_gigabytes(planned.reserved_bytes), retries);
  write({{"allocated_peak_bytes", measured.allocated_peak_bytes},
         {"reserved_peak_bytes", measured.reserved_peak_bytes},
         {"allocation_retries", retries},
         {"device_used_bytes", card.total_bytes - card.free_bytes},
         {"steps", steps}});
}

void RunPlan::write(const nlohmann::ordered_json& measured) const {
  nlohmann::ordered_json json = plan_.to_json();
  if (!measured.is_null()) json["measured"] = measured;
  io::write_file(run_folder_ / "plan.json", json.dump(2) + "\n");
}

}  // namespace vlmtrain::train
