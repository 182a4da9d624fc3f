#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/look_ahead.h"

// The lines between a planner and its rehearsal process: {"job": …} says what is rehearsed from then on, {"request": …}
// is answered by one line: an outcome, or {"error": {"code": exit code, "message": text}}. {"twin": choices} starts a
// run of that job, and each {"twin_step": …} is answered by a foresight. Both ends are the same program, so there are
// no versions and no defaults.

namespace vlmtrain::planner {

void to_json(nlohmann::json& json, const Job& job);
void from_json(const nlohmann::json& json, Job& job);
void to_json(nlohmann::json& json, const DryRunRequest& request);
void from_json(const nlohmann::json& json, DryRunRequest& request);
void to_json(nlohmann::json& json, const DryRunResult& result);
void from_json(const nlohmann::json& json, DryRunResult& result);
void to_json(nlohmann::json& json, const StepConfig& step_config);
void from_json(const nlohmann::json& json, StepConfig& step_config);
void to_json(nlohmann::json& json, const LookAheadStep& step);
void from_json(const nlohmann::json& json, LookAheadStep& step);
void to_json(nlohmann::json& json, const MemoryForecast& forecast);
void from_json(const nlohmann::json& json, MemoryForecast& forecast);

}  // namespace vlmtrain::planner
