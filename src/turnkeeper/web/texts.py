"""What the pages say, in English and Chinese. Sentences about runs and conversations come from `domain.errors`."""

from collections.abc import Mapping
from datetime import datetime

from turnkeeper.domain.errors import Language
from turnkeeper.domain.run import RunStatus

_TEXTS: Mapping[str, tuple[str, str]] = {
    "title": ("Turnkeeper", "Turnkeeper"),
    "skip": ("Skip to content", "跳到正文"),
    "conversations": ("Conversations", "对话"),
    "new_conversation": ("New conversation", "新建对话"),
    "agent": ("Agent", "智能体"),
    "choose_agent": ("Which agent should work?", "由哪个智能体处理？"),
    "no_agents": ("No agent is defined yet. Add one with", "还没有智能体定义。添加方法："),
    "unavailable": ("not installed", "未安装"),
    "unavailable_heading": ("Not installed on this machine", "本机尚未安装"),
    "install_with": ("install with", "安装命令"),
    "name": ("Title", "标题"),
    "name_hint": ("optional", "可不填"),
    "workdir": ("Workdir", "工作目录"),
    "workdir_hint": ("optional; a directory of its own without it", "可不填；不填则使用独立目录"),
    "create": ("Start", "开始"),
    "empty_list": ("No conversation yet.", "还没有对话。"),
    "older": ("Older", "更早"),
    "newest": ("Newest", "最新"),
    "untitled": ("Untitled", "未命名"),
    "open": ("open", "进行中"),
    "lost": ("can no longer be used", "已无法继续"),
    "closed": ("closed", "已关闭"),
    "paused": ("paused", "已暂停"),
    "working": ("working", "处理中"),
    "your_message": ("Your message", "您的消息"),
    "send": ("Send", "发送"),
    "sending": ("Sending…", "发送中……"),
    "send_hint": ("Ctrl+Enter sends", "Ctrl+Enter 发送"),
    "cancel": ("Cancel", "取消"),
    "close": ("Close conversation", "关闭对话"),
    "close_question": (
        "No message can be sent to a closed conversation. Files stay where they are.",
        "关闭后无法再发送消息，文件会保留。",
    ),
    "closed_note": ("This conversation is closed.", "这个对话已关闭。"),
    "no_turns": ("Nothing here yet. Write the first message below.", "这里还没有内容。请在下方写下第一条消息。"),
    "earlier": ("Earlier turns", "更早的内容"),
    "you": ("You", "您"),
    "pending": ("waiting", "等待中"),
    "running": ("working", "处理中"),
    "cancel_requested": ("being cancelled", "正在取消"),
    "recovering": ("checking what happened", "正在确认情况"),
    "completed": ("done", "已完成"),
    "failed": ("failed", "失败"),
    "cancelled": ("cancelled", "已取消"),
    "interrupted": ("waits for your answer", "等待您的回答"),
    "delivery_queued": ("not sent yet", "尚未送达"),
    "delivery_delivering": ("on its way", "正在送达"),
    "delivery_delivered": ("delivered", "已送达"),
    "delivery_not_delivered": ("never reached the agent", "没有送达智能体"),
    "delivery_unknown": ("may or may not have reached the agent", "无法确定是否送达"),
    "changes": ("Changed files", "改动的文件"),
    "no_changes": ("No file was changed.", "没有改动文件。"),
    "files_omitted": ("more files are not listed", "个文件未列出"),
    "snapshot_unavailable": ("What changed is not known", "无法得知改动"),
    "binary": ("not shown as text", "不以文本显示"),
    "added": ("added", "新增"),
    "modified": ("changed", "修改"),
    "deleted": ("deleted", "删除"),
    "type_changed": ("became another kind of file", "文件类型改变"),
    "turn": ("turn", "轮次"),
    "epoch": ("epoch", "纪元"),
    "run": ("Run", "运行"),
    "attempts": ("Attempts", "尝试"),
    "attempt": ("Attempt", "尝试"),
    "host": ("host", "主机"),
    "claimed": ("claimed", "领取"),
    "ended": ("ended", "结束"),
    "outcome": ("outcome", "结果"),
    "details": ("details", "详情"),
    "known": ("What is known", "已知情况"),
    "stage": ("Stage", "阶段"),
    "reached": ("Your message", "您的消息"),
    "stderr": ("The end of the agent's error output", "智能体错误输出的末尾"),
    "tools": ("Tool calls", "工具调用"),
    "no_tool_output": ("no output", "没有输出"),
    "back": ("Back to the conversation", "返回对话"),
    "thinking": ("Thinking", "思考"),
    "activity": ("Activity", "活动"),
    "connecting": ("connecting…", "连接中……"),
    "live": ("live", "实时"),
    "reconnecting": ("connection lost, trying again…", "连接中断，正在重试……"),
    "language_switch": ("中文", "English"),
    "logout": ("Sign out", "退出"),
    "login_needed": ("Sign in needed", "需要登录"),
    "login_how": (
        "Open the one-time link that Turnkeeper printed at its start. For another one run",
        "请打开 Turnkeeper 启动时显示的一次性链接。获取新的链接：",
    ),
    "link_used": (
        "This link was used already, or is too old. For another one run",
        "此链接已被使用或已过期。获取新的链接：",
    ),
    "signed_out": ("You are signed out.", "您已退出。"),
    "not_found": ("There is no such page", "找不到该页面"),
    "page_expired": (
        "This page is too old. Go back, load it again and repeat what you did.",
        "页面已过期。请返回并刷新后重试。",
    ),
    "wrong_host": ("This address is not served here", "此地址不在服务范围内"),
    "something_wrong": ("Something went wrong on our side", "系统内部出错"),
    "agent_output_cut": ("shown without formatting because of its length", "内容过长，未作排版"),
}


class Texts:
    """The texts of one language. `text.send` in a template is the text called `send`."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._index = 0 if language is Language.EN else 1

    def __getattr__(self, name: str) -> str:
        try:
            return _TEXTS[name][self._index]
        except KeyError:
            raise AttributeError(name) from None

    def status(self, value: str) -> str:
        """A run's, a conversation's or a file's state in words."""
        return _TEXTS[value][self._index]

    def delivery(self, value: str) -> str:
        """The delivery status of an owner's message in words."""
        return _TEXTS[f"delivery_{value}"][self._index]

    def statuses(self) -> dict[str, str]:
        """A run's states in words, for the page's script."""
        return {status.value: self.status(status.value) for status in RunStatus}

    def script(self) -> dict[str, str]:
        """The texts that the page's script needs."""
        return {
            name: _TEXTS[name][self._index] for name in ("connecting", "live", "reconnecting", "sending", "thinking")
        }


def names() -> tuple[str, ...]:
    """All names, for tests."""
    return tuple(_TEXTS)


def pair(name: str) -> tuple[str, str]:
    """Both languages of one text, for tests."""
    return _TEXTS[name]


def show_time(moment: datetime) -> str:
    """A time with its offset, for people (F12)."""
    return moment.strftime("%Y-%m-%d %H:%M:%S %z")
