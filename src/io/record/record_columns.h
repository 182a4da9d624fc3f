#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Gives a record the names of kRenamableColumns for what `columns` says that it calls otherwise: what bears those
/// names itself is gone then, and so are the turns that a mapped question or answer stands in place of. data_error
/// where it lacks all of the mapped ones.
void rename_columns(nlohmann::json& record, const std::map<std::string, std::string>& columns);

/// Gives a record without "messages" or "conversations" the former, of what data sets of questions and answers have
/// instead: "texts", "question" and "answer", "instruction" and "output", or a
/// "caption". Leaves others as they are.
void make_messages(nlohmann::json& record);

/// Whether records with these fields may have turns, be it through `columns`.
bool can_make_turns(const std::vector<std::string>& fields, const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
