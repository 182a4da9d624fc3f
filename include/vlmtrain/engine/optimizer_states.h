#pragma once

#include "vlmtrain/engine/settings/training_settings.h"
