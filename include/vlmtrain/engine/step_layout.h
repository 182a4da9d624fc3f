#pragma once

#include "vlmtrain/engine/settings/step_layout.h"
