#pragma once

#include "vlmtrain/engine/settings/options.h"
