"""Error codes with their sentences for owners, problem codes of the HTTP APIs, and the exceptions behind them.

Sentences are for people who do not run the system: plain words, no infrastructure. Details belong to API records and
operator logs (R-06).
"""

from enum import StrEnum


class Language(StrEnum):
    """The languages that owners may choose."""

    EN = "en"
    ZH = "zh"


class ErrorCode(StrEnum):
    """Why a run ended as it did: the closed list of architecture.md, section 3."""

    WORKER_LEASE_EXPIRED = "worker_lease_expired"
    LEASE_FEED_LOST = "lease_feed_lost"
    EXECUTION_TIMEOUT = "execution_timeout"
    PREPARATION_FAILED = "preparation_failed"
    INVALID_RUNTIME_SCOPE = "invalid_runtime_scope"
    MANIFEST_PERSIST_FAILED = "manifest_persist_failed"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    SANDBOX_OUT_OF_MEMORY = "sandbox_out_of_memory"
    AGENT_START_FAILED = "agent_start_failed"
    AGENT_EXITED = "agent_exited"
    AGENT_PROTOCOL_ERROR = "agent_protocol_error"
    SESSION_UNAVAILABLE = "session_unavailable"
    ADMISSION_REFUSED = "admission_refused"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SETTLEMENT_FAILED = "settlement_failed"
    EXECUTION_TREE_CLOSED = "execution_tree_closed"
    CANCELLED = "cancelled"
    NO_OUTPUT = "no_output"


class ProblemCode(StrEnum):
    """Why an HTTP request was refused (RFC 9457 problems carry it as `code`). Statuses belong to `api`."""

    BAD_REQUEST = "bad_request"
    INVALID_JSON = "invalid_json"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    HOST_NOT_ALLOWED = "host_not_allowed"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    CONFLICT = "conflict"
    LEASE_REFUSED = "lease_refused"
    GONE = "gone"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    TOO_LARGE = "too_large"
    UNKNOWN_AGENT = "unknown_agent"
    AGENT_UNAVAILABLE = "agent_unavailable"
    EMPTY_PROMPT = "empty_prompt"
    PROMPT_TOO_LARGE = "prompt_too_large"
    WORKDIR_HELD = "workdir_held"
    INVALID_WORKDIR = "invalid_workdir"
    QUEUE_FULL = "queue_full"
    CONVERSATION_BUSY = "conversation_busy"
    CONVERSATION_CLOSED = "conversation_closed"
    CONVERSATION_LOST = "conversation_lost"
    RUN_ENDED = "run_ended"
    TREE_LIMIT = "tree_limit"
    GENERATION_MISMATCH = "generation_mismatch"
    FENCED = "fenced"
    PRECONDITION_FAILED = "precondition_failed"
    PRECONDITION_REQUIRED = "precondition_required"
    NOT_READY = "not_ready"
    CLAIMS_REFUSED = "claims_refused"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


class InvariantViolation(Exception):  # noqa: N818 - the house style's name
    """Something that the rules exclude has happened. Never caught: going on would make it worse.

    The message is ours, and holds nothing but names, ids and states.
    """

    is_safe_to_log = True


class OperationalError(Exception):
    """Something outside failed. `code` is what the run's record will say; `retryable`: trying again may help.

    The message is for operators. It holds no URL, token or body (E-02).
    """

    def __init__(self, code: ErrorCode, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class SettingRefused(Exception):  # noqa: N818 - the house style's name
    """A configuration that breaks a rule. `lines`: one clear line for each; the process does not start."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class OptionRefused(SettingRefused):
    """The same for what was given on the command line: the command was used wrongly (exit status 2, L-09)."""


_SENTENCES: dict[ErrorCode, tuple[str, str]] = {
    ErrorCode.WORKER_LEASE_EXPIRED: (
        "We did not hear from the machine that worked on this message in time, so the turn was ended.",
        "处理这条消息的机器没有按时报告，本轮已结束。",
    ),
    ErrorCode.LEASE_FEED_LOST: (
        "The agent was stopped because it could no longer be shown that the turn was still allowed to run.",
        "无法再确认本轮仍可继续运行，因此已停止智能体。",
    ),
    ErrorCode.EXECUTION_TIMEOUT: (
        "The agent took longer than the time allowed for one turn and was stopped.",
        "智能体超过了单轮允许的时间，已被停止。",
    ),
    ErrorCode.PREPARATION_FAILED: (
        "The turn could not be prepared; your message did not reach the agent.",
        "本轮未能准备就绪，您的消息没有送达智能体。",
    ),
    ErrorCode.INVALID_RUNTIME_SCOPE: (
        "The turn did not belong where it was about to run, so it was not started.",
        "本轮与将要运行的位置不符，因此没有启动。",
    ),
    ErrorCode.MANIFEST_PERSIST_FAILED: (
        "The record of what was about to run could not be saved, so the turn was not started.",
        "未能保存本轮的运行记录，因此没有启动。",
    ),
    ErrorCode.SANDBOX_UNAVAILABLE: (
        "The agent's workplace could not be made available.",
        "无法为智能体提供工作环境。",
    ),
    ErrorCode.SANDBOX_OUT_OF_MEMORY: (
        "The agent's workplace ran out of memory.",
        "智能体的工作环境内存不足。",
    ),
    ErrorCode.AGENT_START_FAILED: (
        "The agent could not be started; your message did not reach it.",
        "智能体无法启动，您的消息没有送达。",
    ),
    ErrorCode.AGENT_EXITED: (
        "The agent ended unexpectedly in the middle of the turn.",
        "智能体在本轮中途意外退出。",
    ),
    ErrorCode.AGENT_PROTOCOL_ERROR: (
        "The agent answered with an error, or in a way that could not be understood.",
        "智能体返回了错误，或其回应无法识别。",
    ),
    ErrorCode.SESSION_UNAVAILABLE: (
        "The agent's memory of this conversation is not available, so it cannot go on.",
        "智能体对这个对话的记忆不可用，对话无法继续。",
    ),
    ErrorCode.ADMISSION_REFUSED: (
        "The turn was stopped before your message was handed to the agent.",
        "在您的消息交给智能体之前，本轮已被停止。",
    ),
    ErrorCode.OUTCOME_UNKNOWN: (
        "The turn was interrupted, and it is not known how far the agent got with your message.",
        "本轮被中断，无法确定智能体处理您的消息到了哪一步。",
    ),
    ErrorCode.SETTLEMENT_FAILED: (
        "The agent worked on your message, but the end of the turn could not be recorded safely.",
        "智能体处理了您的消息，但本轮的结果未能可靠地保存。",
    ),
    ErrorCode.EXECUTION_TREE_CLOSED: (
        "The task that this turn belonged to had already ended.",
        "本轮所属的任务已经结束。",
    ),
    ErrorCode.CANCELLED: (
        "The turn was cancelled.",
        "本轮已取消。",
    ),
    ErrorCode.NO_OUTPUT: (
        "The agent ended the turn without a reply.",
        "智能体结束了本轮，但没有给出回复。",
    ),
}

_LOST: tuple[str, str] = (
    (
        "The reply was interrupted, and this conversation can no longer be used. "
        "What was written so far stays readable; please start a new conversation."
    ),
    "回复被中断，这个对话已无法继续使用。已有内容仍可查看，请开始新的对话。",
)

_TITLES: dict[ProblemCode, tuple[str, str]] = {
    ProblemCode.BAD_REQUEST: ("The request is not valid", "请求无效"),
    ProblemCode.INVALID_JSON: ("The body is not valid JSON", "请求正文不是有效的 JSON"),
    ProblemCode.UNAUTHORIZED: ("A valid key is needed", "需要有效的密钥"),
    ProblemCode.FORBIDDEN: ("This key may not do that", "此密钥无权执行该操作"),
    ProblemCode.HOST_NOT_ALLOWED: (
        "This server is not set up to be reached by that name (TURNKEEPER_ALLOWED_HOSTS)",
        "此服务器未设置为可通过该名称访问（TURNKEEPER_ALLOWED_HOSTS）",
    ),
    ProblemCode.NOT_FOUND: ("There is no such thing", "找不到该内容"),
    ProblemCode.METHOD_NOT_ALLOWED: ("That method is not possible here", "此处不支持该方法"),
    ProblemCode.NOT_ACCEPTABLE: ("The answer is not available in that form", "无法以所要求的格式回应"),
    ProblemCode.UNSUPPORTED_MEDIA_TYPE: ("The body has the wrong type", "请求正文的类型不受支持"),
    ProblemCode.CONFLICT: ("The state does not allow that", "当前状态不允许该操作"),
    ProblemCode.LEASE_REFUSED: ("The lease is no longer valid", "租约已失效"),
    ProblemCode.GONE: ("That has ended for good", "该内容已永久结束"),
    ProblemCode.IDEMPOTENCY_MISMATCH: (
        "This idempotency key was used with another request",
        "该幂等键已用于另一个请求",
    ),
    ProblemCode.IDEMPOTENCY_IN_PROGRESS: (
        "The first request with this idempotency key is still being worked on",
        "使用该幂等键的首个请求仍在处理中",
    ),
    ProblemCode.TOO_LARGE: ("The body is too large", "请求正文过大"),
    ProblemCode.UNKNOWN_AGENT: ("There is no agent of that name", "没有这个名称的智能体"),
    ProblemCode.AGENT_UNAVAILABLE: ("This agent is not installed", "该智能体尚未安装"),
    ProblemCode.EMPTY_PROMPT: ("The message is empty", "消息为空"),
    ProblemCode.PROMPT_TOO_LARGE: ("The message is too large", "消息过长"),
    ProblemCode.WORKDIR_HELD: ("Another conversation is using this Workdir", "另一个对话正在使用该工作目录"),
    ProblemCode.INVALID_WORKDIR: ("The Workdir is not a valid path", "工作目录不是有效的路径"),
    ProblemCode.QUEUE_FULL: ("Too many messages are waiting in this conversation", "该对话中等待的消息过多"),
    ProblemCode.CONVERSATION_BUSY: ("A turn of this conversation is under way", "该对话正在进行一轮处理"),
    ProblemCode.CONVERSATION_CLOSED: ("The conversation is closed", "对话已关闭"),
    ProblemCode.CONVERSATION_LOST: ("The conversation can no longer be used", "对话已无法继续使用"),
    ProblemCode.RUN_ENDED: ("The run has already ended", "该运行已经结束"),
    ProblemCode.TREE_LIMIT: ("No more subagents can be started here", "此处无法再启动更多子智能体"),
    ProblemCode.GENERATION_MISMATCH: ("The sandbox is another one by now", "沙箱已被替换"),
    ProblemCode.FENCED: ("Something newer has taken over", "已被更新的操作取代"),
    ProblemCode.PRECONDITION_FAILED: ("It has changed in the meantime", "内容已发生变化"),
    ProblemCode.PRECONDITION_REQUIRED: ("The request must say which version it means", "请求必须指明所针对的版本"),
    ProblemCode.NOT_READY: ("The service is not ready yet", "服务尚未就绪"),
    ProblemCode.CLAIMS_REFUSED: ("No work is given out at the moment", "目前不分配任务"),
    ProblemCode.UPSTREAM_UNAVAILABLE: ("A needed part of the system does not answer", "系统所需的部件没有回应"),
    ProblemCode.RATE_LIMITED: ("Too many requests", "请求过于频繁"),
    ProblemCode.TIMEOUT: ("It took too long", "处理超时"),
    ProblemCode.INTERNAL: ("Something went wrong on our side", "系统内部出错"),
}


def sentence(code: ErrorCode, language: Language = Language.EN) -> str:
    """What the owner reads for `code`: one plain sentence."""
    return _pick(_SENTENCES[code], language)


def lost_sentence(language: Language = Language.EN) -> str:
    """What the owner of a LOST conversation reads (R-06)."""
    return _pick(_LOST, language)


def problem_title(code: ProblemCode, language: Language = Language.EN) -> str:
    """The title of an HTTP problem."""
    return _pick(_TITLES[code], language)


def _pick(texts: tuple[str, str], language: Language) -> str:
    return texts[0] if language is Language.EN else texts[1]
