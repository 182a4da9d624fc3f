#include "text/jinja/builtins/builtins.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"

namespace vlmtrain::text::jinja {
namespace {

/// Returns the entry `name` of `table`, or null.
const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto match =
      std::find_if(table.begin(), table.end(), [&](const Builtin& builtin) { return builtin.name == name; });
  return match == table.end() ? nullptr : &*match;
}

/// Limit of the format of strftime_now, so that the result fits in a small buffer: a directive of 2
/// bytes writes at most some 30 bytes.
constexpr size_t kMaxDateFormatBytes = 1000;

/// Returns the number that characters [pos, pos + count) of `current_time` represent. Throws
/// EvaluationError if they are not digits.
int parse_date_number(const std::string& current_time, size_t pos, size_t count) {
  int value = 0;
  for (size_t i = pos; i < pos + count; ++i) {
    if (i >= current_time.size() || current_time[i] < '0' || current_time[i] > '9')
      throw evaluation_error("\"{}\" is not a date", current_time);
    value = value * 10 + (current_time[i] - '0');
  }
  return value;
}

/// Returns whether the Gregorian year `year` has 366 days.
bool is_leap_year(int year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/// Parses "2026-11-22" or "2026-11-22T10:30:00". A space may replace the T. Throws EvaluationError
/// for other texts and invalid dates.
std::tm parse_date(const std::string& current_time) {
  std::tm date{};
  const int year = parse_date_number(current_time, 0, 4);
  const int month = parse_date_number(current_time, 5, 2);
  const int day = parse_date_number(current_time, 8, 2);
  const bool has_time_of_day = current_time.size() > 10;
  const std::array<int, 12> days_per_month = {31, is_leap_year(year) ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_valid =
      year >= 1 && month >= 1 && month <= 12 && day >= 1 && day <= days_per_month.at(static_cast<size_t>(month - 1));
  if (!is_valid || current_time[4] != '-' || current_time[7] != '-' ||
      (has_time_of_day && current_time[10] != 'T' && current_time[10] != ' ')) {
    throw evaluation_error("\"{}\" is not a date", current_time);
  }
  date.tm_year = year - 1900;
  date.tm_mon = month - 1;
  date.tm_mday = day;
  if (has_time_of_day) {
    date.tm_hour = parse_date_number(current_time, 11, 2);
    date.tm_min = parse_date_number(current_time, 14, 2);
    date.tm_sec = parse_date_number(current_time, 17, 2);
    if (date.tm_hour > 23 || date.tm_min > 59 || date.tm_sec > 59)
      throw evaluation_error("\"{}\" is not a date", current_time);
  }
  date.tm_yday = day - 1;
  for (size_t i = 0; i + 1 < static_cast<size_t>(month); ++i) date.tm_yday += days_per_month.at(i);
  const int num_previous_years = year - 1;
  // January 1 of year 1 was a Monday (1) in the proleptic Gregorian calendar.
  date.tm_wday = (1 + num_previous_years * 365 + num_previous_years / 4 - num_previous_years / 100 +
                  num_previous_years / 400 + date.tm_yday) %
                 7;
  date.tm_isdst = -1;
  return date;
}

/// Returns the result of Python's datetime.strftime(format) for `current_time`, a time without a
/// time zone. Throws EvaluationError if `current_time` is empty or invalid, and for unsupported
/// formats.
std::string format_date(const std::string& current_time, const std::string& format) {
  if (current_time.empty()) throw evaluation_error("the template uses the date, which is not set");
  if (format.size() > kMaxDateFormatBytes)
    throw evaluation_error("strftime_now: the format has more than {} bytes", kMaxDateFormatBytes);
  const std::tm date = parse_date(current_time);
  // Python itself replaces %f (microseconds), %z and %Z (empty without a time zone). C has no %f.
  std::string strftime_format;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      strftime_format += format[i];
      continue;
    }
    const char directive = format[++i];
    if (directive == 'f') {
      strftime_format += "000000";
    } else if (directive == 's') {
      throw evaluation_error("strftime_now: %s is not supported");
    } else if (directive != 'z' && directive != 'Z') {
      strftime_format.append(1, '%').append(1, directive);
    }
  }
  if (strftime_format.empty()) return strftime_format;
  std::array<char, size_t{16} * 1024> buffer{};
  // strftime returns 0 both for an empty result and for overflow. The extra byte | distinguishes
  // them.
  const size_t size = std::strftime(buffer.data(), buffer.size(), (strftime_format + "|").c_str(), &date);
  if (size == 0) throw evaluation_error("strftime_now: the result is too long");
  return {buffer.data(), size - 1};
}

/// Returns the entries of dict(…) and namespace(…): first the entries of the positional argument, a
/// dict or an iterable of pairs, then the keyword arguments.
std::vector<std::pair<Value, Value>> collect_dict_entries(RenderContext& context, const BoundArguments& args) {
  const Arguments& arguments = args.arguments();
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1)
    throw evaluation_error("dict and namespace take at most one positional argument");
  if (!arguments.positional.empty() && arguments.positional[0].dict() != nullptr) {
    context.budget.charge_allocation(arguments.positional[0].dict()->entries.size() * sizeof(Value) * 2);
    entries = arguments.positional[0].dict()->entries;
  } else if (!arguments.positional.empty()) {
    const auto items = to_sequence(arguments.positional[0], context.budget);
    for (const Value& pair : items->items) {
      const auto pair_items = to_sequence(pair, context.budget);
      if (pair_items->items.size() != 2) throw evaluation_error("dict needs pairs");
      // insert_or_assign() compares with all entries; a comparison counts as 4 items. Not tuned.
      context.budget.charge_scan(entries.size() * 4);
      insert_or_assign(entries, pair_items->items[0], pair_items->items[1]);
    }
  }
  for (const auto& [key, value] : arguments.keyword) insert_or_assign(entries, Value::text(key), value);
  return entries;
}

Value dict_function(RenderContext& context, const Value& /*self*/, const BoundArguments& args) {
  return Value(std::make_shared<const Dict>(collect_dict_entries(context, args)));
}

Value namespace_function(RenderContext& context, const Value& /*self*/, const BoundArguments& args) {
  auto namespace_object = std::make_shared<Namespace>();
  for (auto& [key, value] : collect_dict_entries(context, args)) {
    if (key.text() == nullptr) continue;  // templates cannot access such an attribute
    namespace_object->set(key.text()->view(), std::move(value));
  }
  context.retained_objects.push_back(namespace_object);
  return Value(std::shared_ptr<Object>(namespace_object));
}

Value range_function(RenderContext& context, const Value& /*self*/, const BoundArguments& args) {
  const bool has_only_end_argument = args[1] == nullptr;
  const int64_t begin = has_only_end_argument ? 0 : args.integer(0, 0);
  const int64_t end = has_only_end_argument ? args.integer(0, 0) : args.integer(1, 0);
  const int64_t step = args.integer(2, 1);
  if (step == 0) throw evaluation_error("range: the step is 0");
  // The difference of two int64_t fits in uint64_t.
  const auto low = static_cast<uint64_t>(step > 0 ? begin : end);
  const auto high = static_cast<uint64_t>(step > 0 ? end : begin);
  const bool is_empty = step > 0 ? begin >= end : end >= begin;
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = is_empty ? 0 : (high - low - 1) / stride + 1;
  if (count > kMaxRangeItems) throw evaluation_error("range: more than {} numbers", kMaxRangeItems);
  context.budget.charge_allocation(count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(count);
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.emplace_back(begin + i * step);
  return Value(std::make_shared<const Sequence>(Sequence::Type::kRange, std::move(items)));
}

Value raise_exception_function(RenderContext& context, const Value& /*self*/, const BoundArguments& args) {
  EvaluationError error{to_str(*args[0], context.budget).bytes()};
  error.is_raised_by_template = true;
  throw error;
}

Value strftime_now_function(RenderContext& context, const Value& /*self*/, const BoundArguments& args) {
  return Value::text(format_date(context.settings.current_time, std::string(args.required_text(0).view())));
}

/// The result of cycler(). Its method next() returns the values in turn. REQUIRES values.
class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> values) : values_(std::move(values)) {
    for (const Value& value : values_) depth = std::max(depth, compute_container_depth(value.depth()));
  }
  std::string_view type_name() const override { return "Cycler"; }

  std::optional<Value> find_attribute(std::string_view name) override {
    const auto bind_method = [&](Function::Implementation implementation) {
      return Value(std::shared_ptr<Object>(std::make_shared<Function>(
          "cycler", ParameterList{""}, implementation, Value(std::shared_ptr<Object>(shared_from_this())))));
    };
    if (name == "current") return values_[index_];
    if (name == "next")
      return bind_method(
          [](RenderContext&, const Value& self, const BoundArguments&) { return to_cycler(self).next(); });
    if (name == "reset")
      return bind_method(
          [](RenderContext&, const Value& self, const BoundArguments&) { return to_cycler(self).reset(); });
    return std::nullopt;
  }

 private:
  static Cycler& to_cycler(const Value& value) { return static_cast<Cycler&>(*value.object()); }
  Value next() {
    const size_t current_index = index_;
    index_ = (index_ + 1) % values_.size();
    return values_[current_index];
  }
  Value reset() {
    index_ = 0;
    return Value::none();
  }

  std::vector<Value> values_;
  size_t index_ = 0;
};

/// The result of joiner(). The first call returns "", later calls return the separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {
    depth = compute_container_depth(separator_.depth());
  }
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(RenderContext& /*context*/, const Arguments& arguments) override {
    if (!arguments.positional.empty() || !arguments.keyword.empty())
      throw evaluation_error("a joiner takes no arguments");
    return std::exchange(was_called_, true) ? separator_ : Value::text("");
  }

 private:
  Value separator_;
  bool was_called_ = false;
};

Value cycler_function(RenderContext& /*context*/, const Value& /*self*/, const BoundArguments& args) {
  if (args.arguments().positional.empty()) throw evaluation_error("a cycler needs values");
  return Value(std::shared_ptr<Object>(std::make_shared<Cycler>(args.arguments().positional)));
}

Value joiner_function(RenderContext& /*context*/, const Value& /*self*/, const BoundArguments& args) {
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(args[0] != nullptr ? *args[0] : Value::text(", "))));
}

constexpr std::array kGlobalFunctions = {
    Builtin{"cycler", {"*"}, cycler_function},
    Builtin{"dict", {"*"}, dict_function},
    Builtin{"joiner", {"sep"}, joiner_function},
    Builtin{"namespace", {"*"}, namespace_function},
    Builtin{"raise_exception", {"message", 1}, raise_exception_function},
    Builtin{"range", {"start stop step", 1}, range_function},
    Builtin{"strftime_now", {"format", 1}, strftime_now_function},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  for (const auto& table : {get_text_filters(), get_number_filters(), get_list_filters(), get_select_filters()}) {
    if (const Builtin* builtin = find_builtin(table, name)) return builtin;
  }
  return nullptr;
}

const Builtin* find_test(std::string_view name) {
  return find_builtin(get_tests(), name);
}

const Builtin* find_global_function(std::string_view name) {
  return find_builtin(get_global_functions(), name);
}

std::string describe_unknown_name(std::string_view kind, std::string_view name) {
  return fmt::format("the {} \"{}\" does not exist; use one that docs/reference/chat-templates.md lists", kind, name);
}

Value call_builtin(RenderContext& context, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  context.budget.charge_steps();
  return builtin.implementation(context, self, BoundArguments(builtin.name, builtin.parameters, arguments));
}

Value make_generator(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Type::kGenerator, std::move(items)));
}

std::span<const Builtin> get_global_functions() {
  return kGlobalFunctions;
}

}  // namespace vlmtrain::text::jinja
