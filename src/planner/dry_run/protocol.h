#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/look_ahead.h"

// The protocol between a planner and its dry-run process, in lines of JSON. {"job": …} sets the
// job. {"request": …} is answered by a DryRunResult or {"error": {"code": exit code, "message":
// text}}. {"look_ahead": StepConfig} starts a look-ahead session, and {"look_ahead_step": …} is answered by a
// MemoryForecast. Both ends are the same program, so that there are no versions and no defaults.

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
