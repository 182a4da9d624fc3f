#pragma once

#include "vlmtrain/engine/settings/balance_options.h"
