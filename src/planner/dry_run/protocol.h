#pragma once

#include <nlohmann/json_fwd.hpp>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/look_ahead.h"

// The protocol between the planner and its dry-run process. Each message is one line of JSON:
//
// {"gpu": [[name, value], …]}         the first line: environment variables of the virtual GPU
// {"job": Job}                        sets the job
// {"request": DryRunRequest}          answer: DryRunResult
// {"look_ahead": StepConfig}          starts a look-ahead with the job
// {"look_ahead_step": LookAheadStep}  answer: MemoryForecast
//
// Instead of an answer, the process may write {"error": {"code": exit code, "message": text}}. Both
// ends are the same program, so that the messages have no version and all fields are required.

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
